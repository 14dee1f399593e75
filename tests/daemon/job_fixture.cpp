#include "tests/daemon/job_fixture.h"

#include <cstring>

namespace elixir::testing {

daemon::Job::Options InProcessJob::job_options(const Options& options) {
  return {.id = 1,
          .name = "job",
          .shape = model.shape,
          .rules = {options.accumulate, options.immediate ? 1u : 0u, options.norms ? 1u : 0u,
                    options.early ? 1u : 0u},
          .local_ranks = model.shape.ranks,
          .places = model.places};
}

daemon::Session& InProcessJob::claim(uint32_t rank) {
  daemon::Session session;
  session.id = 10 + rank;
  session.rank = session.local_rank = rank;
  session.socket = 100 + static_cast<int>(rank);
  const Result<daemon::Session*> claimed = job.claim(std::move(session));
  EXPECT_TRUE(claimed.ok()) << claimed.status().message();
  (*claimed)->reservation =
      daemon::Reservation{.progress = std::make_shared<daemon::FillProgress>()};
  return **claimed;
}

void InProcessJob::reserve(uint32_t rank) {
  job.reserved(this->rank(rank), daemon::SessionMemory::create({model.shape, 1, rank, -1}));
}

void InProcessJob::attach() {
  for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) {
    claim(rank);
    reserve(rank);
    if (!job.attached(this->rank(rank))) continue;
    const uint32_t threads_of_group[] = {1};
    job.begin_work(threads_of_group, /*slice_numel=*/256);
  }
  for (const auto& session : job.sessions()) {
    job.said_hello(*session, "peer");
    await_ready(session->local_rank, 70 + session->local_rank);
  }
}

void InProcessJob::start() {
  attach();
  const std::vector<std::vector<float>> values = initial_values(model);
  for (uint32_t chunk = 0; chunk < values.size(); ++chunk) {
    std::memcpy(rank(0).memory->grads().data() + model.shape.grad_slot_offset(chunk),
                values[chunk].data(), values[chunk].size() * sizeof(float));
    shm::LoadChunk message{};
    message.chunk = chunk;
    message.last = chunk + 1 == values.size() ? 1 : 0;
    ASSERT_TRUE(job.load_chunk(rank(0), message).ok());
  }
  run_workers();
  ASSERT_EQ(job.phase(), daemon::JobPhase::kTraining);
  ports.submits = 0;
}

void InProcessJob::finish_work() {
  daemon::JobWork* const work = std::exchange(ports.submitted, nullptr);
  ASSERT_NE(work, nullptr) << "nothing is in flight";
  while (work->run_slice(0, 0)) {
  }
  job.work_done();
}

void InProcessJob::await_ready(uint32_t rank, uint64_t request_id, bool all_ranks) {
  shm::AwaitReady request{};
  request.header.request_id = request_id;
  request.all_ranks = all_ranks ? 1 : 0;
  job.await_ready(this->rank(rank), request);
}

void InProcessJob::run_workers() {
  while (ports.submitted != nullptr) finish_work();
}

void InProcessJob::write_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t micro_step) {
  const daemon::SessionMemory& memory = *this->rank(rank).memory;
  const std::vector<std::byte> grads = fake_gradient(model, rank, chunk, step, micro_step);
  std::memcpy(memory.grads().data() + model.shape.grad_slot_offset(chunk), grads.data(),
              grads.size());
  for (uint32_t i = 0; i < model.places.size(); ++i) {
    if (shm::chunks_of(model.places[i], model.shape).contains(chunk)) {
      memory.grad_groups(step)[i].store(model.grad_group(i, step));
    }
  }
  shm::GradRecord& record = memory.grad_record(chunk);
  record.grad_step.store(step);
  record.grad_micro_step.store(micro_step);
  const bool to_sum = job.options().rules.accumulate > 1 || micro_step > 1;
  record.grad_publication.store({.revision = record.grad_publication.load().revision + 1,
                                 .discards = discards[rank],
                                 .to_sum = to_sum ? 1u : 0u});
  memory.header().publications.fetch_add(1);
}

void InProcessJob::write_grads(uint32_t rank, uint32_t step, uint32_t micro_step) {
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    write_chunk(rank, chunk, step, micro_step);
  }
}

void InProcessJob::open(uint32_t rank, uint32_t step) {
  write_record(rank, make_record(step, model.shape.ranks));
  header(rank).open_step.store(step);
}

Status InProcessJob::publish_chunk(uint32_t rank, uint32_t chunk, uint32_t step,
                                   uint32_t micro_step) {
  write_chunk(rank, chunk, step, micro_step);
  return job.look_at_grads(this->rank(rank), chunk);
}

Status InProcessJob::publish(uint32_t rank, uint32_t step, uint32_t micro_step) {
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    ELIXIR_RETURN_IF_ERROR(publish_chunk(rank, chunk, step, micro_step));
  }
  return Status();
}

Status InProcessJob::request_sums(uint32_t rank) {
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    shm::GradRecord& record = this->rank(rank).memory->grad_record(chunk);
    shm::GradPublication publication = record.grad_publication.load();
    publication.to_sum = 1;
    record.grad_publication.store(publication);
    header(rank).publications.fetch_add(1);
    ELIXIR_RETURN_IF_ERROR(job.look_at_grads(this->rank(rank), chunk));
  }
  return Status();
}

bool InProcessJob::taken(uint32_t rank) {
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    const daemon::SessionMemory& memory = *this->rank(rank).memory;
    const uint32_t published = memory.grad_record(chunk).grad_publication.load().revision;
    if (memory.chunk_record(chunk).grad_taken.load() != published) return false;
  }
  return true;
}

void InProcessJob::fill_sums() {
  for (const auto& session : job.sessions()) {
    const shm::Segment& sums = session->memory->sums();
    ASSERT_TRUE(sums.fill(0, sums.bytes()).ok());
  }
  job.sums_filled(Status());
}

void InProcessJob::write_record(uint32_t rank, const shm::StepRecord& record) {
  std::memcpy(this->rank(rank).memory->control().data() + model.shape.step_records_offset() +
                  record.step % shm::kStepRing * sizeof record,
              &record, sizeof record);
}

void InProcessJob::post(uint32_t rank, const shm::StepRecord& record) {
  write_record(rank, record);
  header(rank).posted_step.store(record.step);
  discards[rank] = 0;
  job.look_at_posted(this->rank(rank));
}

bool InProcessJob::equals(const Reference& reference) {
  const auto equals_in = [&](uint32_t chunk, const shm::ParameterPart& part) {
    for (uint64_t i = part.offset; i < part.offset + part.numel; ++i) {
      const auto owner = static_cast<uint32_t>(i / model.shape.shard_numel());
      const daemon::SessionMemory& memory = *rank(owner).memory;
      const uint32_t slot = memory.chunk_record(chunk).slot.load();
      const std::byte* have = memory.param(slot, i % model.shape.shard_numel());
      if (std::memcmp(have, reference.param(chunk).data() + i * sizeof(float), sizeof(float)) !=
          0) {
        return false;
      }
    }
    return true;
  };
  for (const shm::ParameterPlace& place : model.places) {
    const shm::ChunkRun run = shm::chunks_of(place, model.shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      if (!equals_in(chunk, shm::part_in(place, model.shape, chunk))) return false;
    }
  }
  return true;
}

void expect_told(const FakePorts& ports, uint32_t rank, Code code, const std::string& needle) {
  for (const FakePorts::Told& told : ports.told) {
    if (told.rank != rank) continue;
    EXPECT_EQ(told.code, code) << told.text;
    EXPECT_NE(told.text.find(needle), std::string::npos) << told.text;
    return;
  }
  ADD_FAILURE() << "rank " << rank << " was told nothing";
}

}  // namespace elixir::testing
