#include "tests/daemon/job_fixture.h"

#include "daemon/handle_message.h"
#include "tests/support/outcomes.h"

namespace elixir::testing {

std::unique_ptr<FakeTrainer> FakeTrainer::beside(const Options& options, daemon::Job& job,
                                                 std::function<bool()> go_on) {
  std::unique_ptr<FakeTrainer> trainer(new FakeTrainer(options));
  // The job keeps it for longer than the trainer is there.
  const auto borrow = [](const shm::Segment* segment) {
    return Memory(Memory(), const_cast<shm::Segment*>(segment));
  };
  daemon::Session& session = *job.sessions()[options.rank - options.first_rank];
  trainer->control_ = borrow(&session.memory->control());
  trainer->grads_ = borrow(&session.memory->grads());
  trainer->own_sums_ = borrow(&session.memory->sums());
  for (const auto& other : job.sessions()) {
    trainer->params_.push_back(borrow(&other->memory->params()));
    trainer->states_.push_back(borrow(&other->memory->state()));
    trainer->swings_.push_back(borrow(other->memory->swing()));
    trainer->all_grads_.push_back(borrow(&other->memory->grads()));
  }
  trainer->find_swing_slots();
  // As the event loop does with what a rank sends.
  trainer->deliver_ = [&job, &session](std::span<const std::byte> bytes) {
    const Status status = daemon::handle_message(session, bytes);
    if (!status.ok()) job.end_session(session, status);
  };
  trainer->go_on_ = std::move(go_on);
  return trainer;
}

daemon::Job::Options InProcessJob::job_options(const Options& options) const {
  return {.id = 1,
          .name = "job",
          .shape = options.model.shape,
          .rules = {options.accumulate, options.immediate, options.norms, options.early},
          .local_ranks = trainers.local_ranks(),
          .places = options.model.places};
}

daemon::Session& InProcessJob::claim(uint32_t rank) {
  daemon::Session session;
  session.id = 10 + rank;
  session.rank = trainers.options().first_rank + rank;
  session.local_rank = rank;
  session.socket = 100 + static_cast<int>(rank);
  daemon::Session& claimed = *must(job.claim(std::move(session)));
  claimed.reservation = daemon::Reservation{.progress = std::make_shared<daemon::FillProgress>()};
  return claimed;
}

void InProcessJob::reserve(uint32_t rank) {
  daemon::Session& session = this->rank(rank);
  job.reserved(session, daemon::SessionMemory::create({model.shape, 1, session.rank, -1}));
}

void InProcessJob::attach() {
  for (uint32_t rank = 0; rank < trainers.local_ranks(); ++rank) {
    claim(rank);
    reserve(rank);
    if (!job.attached(this->rank(rank))) continue;
    const uint32_t threads_of_group[] = {1};
    job.begin_work(threads_of_group, /*slice_numel=*/256);
  }
  const auto go_on = [this] {
    if (ports.submitted == nullptr && !job.reserving()) return false;
    if (ports.submitted != nullptr) finish_work();
    if (job.reserving()) fill_sums();
    return true;
  };
  for (const auto& session : job.sessions()) {
    const FakeTrainer::Options options = trainers.options_of(session->local_rank);
    trainers.ranks().push_back(FakeTrainer::beside(options, job, go_on));
    job.said_hello(*session, "peer");
    await_ready(session->local_rank, 70 + session->local_rank);
  }
}

void InProcessJob::start() {
  attach();
  must(trainers.load_values());
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

void InProcessJob::open(uint32_t rank, uint32_t step) {
  trainers.rank(rank).open(make_record(step, model.shape.ranks));
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

void InProcessJob::publish_all(uint32_t step, uint32_t micro_step) {
  for (uint32_t rank = 0; rank < trainers.local_ranks(); ++rank) {
    must(publish(rank, step, micro_step));
  }
}

Status InProcessJob::request_sums(uint32_t rank) {
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    trainers.rank(rank).write_request(chunk);
    ELIXIR_RETURN_IF_ERROR(job.look_at_grads(this->rank(rank), chunk));
  }
  return Status();
}

bool InProcessJob::taken(uint32_t rank) {
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    const FakeTrainer& trainer = trainers.rank(rank);
    const uint32_t published = trainer.grad_record(chunk).grad_publication.load().revision;
    if (trainer.chunk_record(chunk).grad_taken.load() != published) return false;
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

void InProcessJob::post_silently(uint32_t rank, uint32_t step) {
  trainers.rank(rank).post_silently(make_record(step, model.shape.ranks));
}

void InProcessJob::post(uint32_t rank, const shm::StepRecord& record) {
  trainers.rank(rank).post_silently(record);
  job.look_at_posted(this->rank(rank));
}

void InProcessJob::post_all(uint32_t step) {
  for (uint32_t rank = 0; rank < trainers.local_ranks(); ++rank) post(rank, step);
}

void InProcessJob::make_step(uint32_t step) {
  for (uint32_t rank = 0; rank < trainers.local_ranks(); ++rank) write_grads(rank, step);
  post_all(step);
  run_workers();
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
