#include "tests/fuzz/job/scripted_rank.h"

#include <algorithm>
#include <cstring>

#include "optim_cpu/master.h"

namespace elixir::fuzz {
namespace {

constexpr uint32_t kStepsAhead = 2;  // of the last step committed: client/session
constexpr uint32_t kDropped = 50;    // passes that are dropped have gradients of other steps

}  // namespace

ScriptedRank::ScriptedRank(FuzzedJob* job, uint32_t rank)
    : job_(*job),
      rank_(rank),
      slot_loads_(job->setup().model.shape.n_grad_slots()),
      revisions_(job->setup().model.shape.n_chunks),
      sum_steps_(job->setup().model.shape.n_chunks) {
  const shm::Shape& shape = job->setup().model.shape;
  for (uint32_t i = 0; loads() && i < shape.n_frozen_chunks; ++i) {
    loads_.emplace_back(shape.all_chunks() + i, shm::LoadPart::kWhole);
  }
  for (uint32_t i = 0; loads() && i < shape.n_chunks; ++i) {
    for (const shm::LoadPart part : shm::load_parts(shape.type)) loads_.emplace_back(i, part);
  }
  if (loads_.empty()) state_ = State::kAwait;
}

bool ScriptedRank::loads() const { return rank_ == 0 || job_.setup().collective(); }

uint32_t ScriptedRank::chunk() const {
  return job_.setup().model.shape.n_chunks - 1 - chunks_done_;
}

bool ScriptedRank::advance(bool rings) {
  if (!job_.alive(rank_) || !job_.said_hello(rank_)) return false;
  if (state_ <= State::kAwait) return advance_load(rings);
  if (state_ <= State::kRing) return advance_grads(rings);
  return advance_post(rings);
}

bool ScriptedRank::discard() {
  const JobSetup& setup = job_.setup();
  const bool between = state_ == State::kBegin || state_ == State::kRing;
  const bool may = between && job_.alive(rank_) && !setup.sums() && setup.rules.immediate == 0;
  if (may) drop_gradients();
  return may;
}

void ScriptedRank::drop_gradients() {
  for (uint32_t i = 0; i < job_.setup().model.shape.n_parameters; ++i) {
    memory().grad_groups(step_)[i].store(shm::kNoGradient);
  }
  ++discards_;
  chunks_done_ = 0;
  round_ = 1;
  state_ = State::kBegin;
}

// ---- initial weights ----

void ScriptedRank::fill_load_slot() const {
  const shm::Shape& shape = job_.setup().model.shape;
  const auto [chunk, part] = loads_[load_];
  const bool collective = job_.setup().collective();
  const uint32_t rank = job_.setup().first_rank + rank_;
  const uint64_t begin = collective ? shape.shard_begin(rank) : 0;
  const uint64_t end = collective ? shape.shard_end(rank) : shape.chunk_numel;
  const std::vector<float>& values = job_.setup().initial(chunk);
  std::byte* const slot = memory().grads().data() + shape.grad_slot_offset(shape.load_slot(chunk));
  if (shape.frozen(chunk)) {
    std::vector<float> masters(end - begin);  // nobody keeps them
    optim::load_master(shape.type, values.data() + begin, end - begin, slot, masters.data());
  } else {
    shm::put_part(values.data() + begin, end - begin, part, slot);
  }
}

bool ScriptedRank::advance_load(bool) {
  const shm::Shape& shape = job_.setup().model.shape;
  switch (state_) {
    case State::kLoad:
      fill_load_slot();
      state_ = State::kRingLoad;
      return true;
    case State::kRingLoad: {  // not a doorbell: it cannot get lost
      shm::LoadChunk message{};
      message.chunk = loads_[load_].first;
      message.part = static_cast<uint32_t>(loads_[load_].second);
      state_ = State::kLoading;
      job_.ring(rank_, message);
      return true;
    }
    case State::kLoading: {
      const uint32_t slot = shape.load_slot(loads_[load_].first);
      if (memory().chunk_record(slot).loads_taken.load() <= slot_loads_[slot]) return false;
      ++slot_loads_[slot];
      state_ = ++load_ == loads_.size() ? State::kAwait : State::kLoad;
      return true;
    }
    default:
      if (job_.replies == 0) return false;
      // What lies between parameters must count as a zero gradient.
      std::memset(memory().grads().data(), 0, shape.grads_bytes());
      state_ = State::kOpen;
      return true;
  }
}

// ---- gradients ----

void ScriptedRank::write_record() const {
  const shm::StepRecord& record = job_.setup().record(step_);
  std::memcpy(memory().control().data() + job_.setup().model.shape.step_records_offset() +
                  step_ % shm::kStepRing * sizeof record,
              &record, sizeof record);
}

void ScriptedRank::next_chunk() {
  const JobSetup& setup = job_.setup();
  state_ = State::kBegin;
  const uint32_t n_chunks = setup.model.shape.n_chunks;
  const uint32_t rounds = drops() ? setup.dropped_rounds[drops_done_] : setup.rounds;
  uint32_t chunks = n_chunks;
  if (drops() && round_ == rounds && setup.dropped_chunks < n_chunks) {
    chunks = std::min(n_chunks, setup.dropped_chunks + (setup.dropped_uneven ? rank_ : 0));
  }
  if (++chunks_done_ < chunks) return;
  chunks_done_ = 0;
  if (++round_ <= rounds) return;
  if (!drops()) {
    state_ = State::kRecord;
    return;
  }
  ++drops_done_;
  drop_gradients();
}

// As client/session waits: a sleeper counts itself, looks once more, and then sees nothing but its
// word. Whom elixird forgets to wake sleeps for ever; of a hostile rank the time is soon over.
bool ScriptedRank::has_param() {
  const shm::ChunkRecord& record = chunk_record();
  shm::ControlHeader& header = memory().header();
  const uint32_t word = record.param_step.load();
  const bool there = std::max(word, header.skipped_through.load()) + 1 >= step_;
  if (sleeps_on_) {
    if (word == *sleeps_on_ && !job_.setup().counts) return false;
    sleeps_on_.reset();
    header.param_waiters.fetch_sub(1);
    chunk_record().waiters.fetch_sub(1);
  } else if (!there) {
    header.param_waiters.fetch_add(1);
    chunk_record().waiters.fetch_add(1);
    sleeps_on_ = word;
    return false;
  }
  return there;
}

bool ScriptedRank::advance_grads(bool rings) {
  const JobSetup& setup = job_.setup();
  const shm::Shape& shape = setup.model.shape;
  const shm::ChunkRecord& record = chunk_record();
  shm::GradRecord& grad = memory().grad_record(chunk());
  shm::ControlHeader& header = memory().header();
  shm::GradPublication publication = grad.grad_publication.load();
  switch (state_) {
    case State::kOpen:
      if (setup.rules.opens_steps()) {
        write_record();
        memory().header().open_step.store(step_);
      }
      state_ = State::kBegin;
      return true;
    case State::kBegin:
      if (!has_param()) return false;
      state_ = State::kFill;
      if (round_ == 1 && sum_steps_[chunk()] != step_) return true;
      sum_steps_[chunk()] = step_;
      state_ = State::kFree;
      if (publication.to_sum != 0) return true;
      publication.to_sum = 1;
      grad.grad_publication.store(publication);
      header.publications.fetch_add(1);
      state_ = State::kRingSum;
      return true;
    case State::kFree: {
      const bool taken = record.grad_taken.load() >= revisions_[chunk()];
      const uint32_t awaited = taken ? 0 : chunk() + 1;
      const bool says = header.awaited_sum.exchange(awaited) != awaited;
      shm::GradsPublished doorbell{};
      doorbell.chunk = chunk();
      if (says && !taken && rings) job_.ring(rank_, doorbell);
      if (taken) state_ = State::kFill;
      return taken || says;
    }
    case State::kFill: {
      const uint32_t as_if = drops() ? step_ + kDropped : step_;
      const std::vector<std::byte>& grads = setup.gradient(rank_, chunk(), as_if, round_);
      if (!grads.empty()) {
        std::memcpy(memory().grads().data() + shape.grad_slot_offset(chunk()), grads.data(),
                    grads.size());
      }
      for (uint32_t i = 0; i < shape.n_parameters; ++i) {
        const uint8_t group = setup.grad_group(rank_, i, step_);
        const bool here = shm::chunks_of(setup.model.places[i], shape).contains(chunk());
        if (group == shm::kNoGradient || !here) continue;
        memory().grad_groups(step_)[i].store(group);
      }
      grad.grad_step.store(step_);
      state_ = State::kMicroStep;
      return true;
    }
    case State::kMicroStep:
      grad.grad_micro_step.store(round_);
      state_ = State::kPublish;
      return true;
    case State::kPublish:
      if (to_sum()) sum_steps_[chunk()] = step_;
      grad.grad_publication.store(
          {.revision = ++revisions_[chunk()], .discards = discards_, .to_sum = to_sum() ? 1u : 0u});
      header.publications.fetch_add(1);
      state_ = State::kRing;
      return true;
    default: {
      const bool for_sum = state_ == State::kRingSum;
      shm::GradsPublished doorbell{};
      doorbell.chunk = chunk();
      const bool early = setup.rules.rings_all() || to_sum();
      if (for_sum) {
        state_ = State::kFree;
      } else {
        next_chunk();
      }
      if (rings && (early || for_sum)) job_.ring(rank_, doorbell);
      return true;
    }
  }
}

// ---- the post ----

bool ScriptedRank::advance_post(bool rings) {
  shm::ControlHeader& header = memory().header();
  switch (state_) {
    case State::kRecord:
      if (header.committed_step.load() + kStepsAhead < step_) return false;
      write_record();
      state_ = State::kPost;
      return true;
    case State::kPost:
      header.posted_step.store(step_);
      job_.note_posted(rank_);
      state_ = State::kRingPost;
      return true;
    case State::kRingPost: {
      shm::StepPosted doorbell{};
      doorbell.step = step_;
      round_ = 1;
      drops_done_ = discards_ = 0;
      for (uint32_t i = 0; i < job_.setup().model.shape.n_parameters; ++i) {
        memory().grad_groups(step_ + 1)[i].store(shm::kNoGradient);
      }
      state_ = step_++ == job_.setup().steps ? State::kFinish : State::kOpen;
      if (rings) job_.ring(rank_, doorbell);
      return true;
    }
    case State::kFinish:
      if (header.finished_step.load() < job_.setup().steps) return false;
      state_ = State::kFinished;
      return true;
    default:
      return false;
  }
}

}  // namespace elixir::fuzz
