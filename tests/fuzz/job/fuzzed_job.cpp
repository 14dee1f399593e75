#include "tests/fuzz/job/fuzzed_job.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "daemon/handle_message.h"
#include "optim_cpu/master.h"

namespace elixir::fuzz {
namespace {

using daemon::Activity;
using daemon::JobPhase;
using daemon::SessionMemory;

constexpr uint64_t kSliceNumel = 64;
constexpr int kFirstSocket = 100;
constexpr uint64_t kMostNumel = 256;  // of a chunk

// A session's memory takes thousands of times as long to make as to clear.
class MemoryPool {
 public:
  SessionMemory take(const shm::Shape& shape, uint32_t rank) {
    std::vector<SessionMemory>& free = free_[key(shape, rank)];
    if (free.empty()) {
      Result<SessionMemory> memory =
          SessionMemory::create({.shape = shape, .session_id = 1, .rank = rank});
      ELIXIR_CHECK(memory.ok(), "{}", memory.status().message());
      return std::move(*memory);
    }
    SessionMemory memory = std::move(free.back());
    free.pop_back();
    clear(memory, shape);
    return memory;
  }

  void give_back(const shm::Shape& shape, uint32_t rank, SessionMemory memory) {
    free_[key(shape, rank)].push_back(std::move(memory));
  }

 private:
  static std::string key(const shm::Shape& shape, uint32_t rank) {
    return std::string(reinterpret_cast<const char*>(&shape), sizeof shape) + std::to_string(rank);
  }
  static void clear(const SessionMemory& memory, const shm::Shape& shape) {
    std::memset(memory.control().data(), 0, shape.control_bytes());
    std::memset(memory.grads().data(), 0, shape.grads_bytes());
    std::memset(memory.params().data(), 0, shape.params_bytes());
    std::memset(memory.sums().data(), 0, shape.sums_bytes());
    const uint64_t first = shape.master_offset();
    std::memset(memory.state().data() + first, 0, shape.state_bytes() - first);
    memory.put_chunks_first();
  }

  std::map<std::string, std::vector<SessionMemory>> free_;
};

MemoryPool& pool() {
  static MemoryPool instance;
  return instance;
}

daemon::Job::Options job_options(const JobSetup& setup) {
  return {.id = 1,
          .name = "job",
          .shape = setup.model.shape,
          .rules = setup.rules,
          .local_ranks = setup.local_ranks,
          .places = setup.model.places};
}

}  // namespace

FuzzedJob::FuzzedJob(const JobSetup& setup)
    : setup_(setup),
      job_(std::make_unique<daemon::Job>(job_options(setup), this)),
      counts_(setup.counts),
      updates_(setup_),
      most_posted_(setup.local_ranks, 0) {}

FuzzedJob::~FuzzedJob() {
  for (const auto& session : job_->sessions()) {
    if (session == nullptr || session->memory == nullptr) continue;
    pool().give_back(setup_.model.shape, session->rank, std::move(*session->memory));
  }
}

// ---- what a job asks for ----

void FuzzedJob::submit(daemon::JobWork* work) {
  ELIXIR_EXPECT(submitted_ == nullptr, "a second activity while one is in flight");
  submitted_ = work;
  ++submits_;
}
void FuzzedJob::reply(const daemon::Session&, uint64_t) { ++replies; }
void FuzzedJob::tell(const daemon::Session& session, const Status& why, uint32_t cause) {
  told_.push_back({session.local_rank, cause, why.code()});
}
void FuzzedJob::close(int socket) {
  ELIXIR_EXPECT(std::find(closed_.begin(), closed_.end(), socket) == closed_.end(),
                "socket {} is closed twice", socket);
  closed_.push_back(socket);
}
void FuzzedJob::fill_sums(daemon::Job&, std::shared_ptr<daemon::FillProgress>) {
  ELIXIR_EXPECT(!fills_ && setup_.rules.accumulate == 1, "sums are filled twice");
  fills_ = true;
}
void FuzzedJob::over(daemon::Job&) { ++overs_; }

// ---- the ranks come ----

bool FuzzedJob::advance_start() {
  if (is_over()) return false;
  if (claims_ < ranks()) {
    claim(claims_++);
  } else if (memories_ < ranks()) {
    const uint32_t rank = memories_++;
    job_->reserved(session(rank), pool().take(setup_.model.shape, session(rank).rank));
  } else if (job_->phase() == JobPhase::kEnding) {
    return false;
  } else if (attaches_ < ranks()) {
    const uint32_t threads_of_group[] = {1};
    if (job_->attached(session(attaches_++))) job_->begin_work(threads_of_group, kSliceNumel);
  } else if (hellos_ < ranks()) {
    const uint32_t rank = hellos_++;
    session(rank).routing_id = "peer";  // sealing its memory would be all that said_hello() adds
    ring(rank, shm::AwaitReady{});
  } else {
    return false;
  }
  called();
  return true;
}

void FuzzedJob::claim(uint32_t rank) {
  if (job_->phase() != JobPhase::kAttaching) return;
  daemon::Session session;
  session.id = 10 + rank;
  session.rank = setup_.first_rank + rank;
  session.local_rank = rank;
  session.socket = kFirstSocket + static_cast<int>(rank);
  const Result<daemon::Session*> claimed = job_->claim(std::move(session));
  ELIXIR_EXPECT(claimed.ok(), "{}", claimed.status().message());
  (*claimed)->reservation =
      daemon::Reservation{.progress = std::make_shared<daemon::FillProgress>()};
}

bool FuzzedJob::refuse_memory() {
  if (is_over() || claims_ < ranks() || memories_ >= ranks()) return false;
  job_->reserved(session(memories_++), error(Code::kResourceExhausted, "no memory"));
  called();
  return true;
}

// ---- what reaches elixird ----

bool FuzzedJob::reachable(uint32_t rank) const {
  return !is_over() && rank < claims_ && job_->sessions()[rank] != nullptr;
}

bool FuzzedJob::alive(uint32_t rank) const { return reachable(rank) && session(rank).socket >= 0; }

const SessionMemory* FuzzedJob::memory(uint32_t rank) const {
  return rank < claims_ && job_->sessions()[rank] != nullptr ? session(rank).memory.get() : nullptr;
}

void FuzzedJob::note_posted(uint32_t rank) {
  const uint32_t word = memory(rank)->header().posted_step.load();
  most_posted_[rank] = std::max(most_posted_[rank], word);
}

void FuzzedJob::tick() {
  if (is_over()) return;
  job_->look_at_everything();
  called();
}

void FuzzedJob::message(uint32_t rank, std::span<const std::byte> bytes) {
  if (!reachable(rank) || !said_hello(rank)) return;
  const Status status = daemon::handle_message(session(rank), bytes);
  if (!status.ok()) job_->end_session(session(rank), status);
  called();
}

bool FuzzedJob::lose(uint32_t rank) {
  if (!alive(rank)) return false;
  job_->lose_rank(session(rank));
  called();
  return true;
}

void FuzzedJob::detach(uint32_t rank) {
  if (!alive(rank)) return;
  job_->detach(session(rank));
  called();
}

void FuzzedJob::stop() {
  if (is_over()) return;
  job_->stop();
  called();
}

// ---- workers ----

bool FuzzedJob::has_slices() const { return submitted_ != nullptr && !submitted_->exhausted(); }

void FuzzedJob::run_slices(uint32_t most) {
  for (; most > 0 && has_slices(); --most) submitted_->run_slice(0, 0);
  updates_.note_updates(*job_);
  check_counts();
}

bool FuzzedJob::deliver() {
  if (submitted_ == nullptr || has_slices()) return false;
  submitted_ = nullptr;
  job_->work_done();
  called();
  check_counts();
  check_numbers();
  return true;
}

bool FuzzedJob::fill_sums(bool ok) {
  if (!fills_) return false;
  fills_ = false;
  job_->sums_filled(ok ? Status() : error(Code::kResourceExhausted, "no memory for sums"));
  called();
  return true;
}

// ---- invariants ----

void FuzzedJob::called() {
  updates_.note_words(*job_, submits_);
  check();
}

void FuzzedJob::check() const {
  const daemon::JobMachine& machine = job_->machine();
  machine.check_invariant();
  uint32_t least_posted = UINT32_MAX, least_written = UINT32_MAX;
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    least_posted = std::min(least_posted, machine.posted_step(rank));
    least_written = std::min(least_written, most_posted_[rank]);
  }
  ELIXIR_EXPECT(machine.committed_step() <= least_posted, "step {} is committed, {} posted",
                machine.committed_step(), least_posted);
  ELIXIR_EXPECT(machine.committed_step() <= least_written, "step {} was never posted by all",
                machine.committed_step());
  if (is_over()) return check_end();
  const bool busy = machine.activity() != Activity::kNone;
  ELIXIR_EXPECT(busy == (submitted_ != nullptr), "an activity without work, or work without one");
  if (busy) return;
  ELIXIR_EXPECT(job_->phase() != JobPhase::kEnding || job_->reserving(),
                "the job waits for nothing and is not over");
  ELIXIR_EXPECT(job_->phase() != JobPhase::kTraining || least_posted == machine.committed_step(),
                "step {} is posted by all and waits for nothing", least_posted);
}

void FuzzedJob::check_end() const {
  ELIXIR_EXPECT(overs_ == 1, "the job is over {} times", overs_);
  ELIXIR_EXPECT(submitted_ == nullptr && !fills_, "the job is over and its memory in use");
  const std::optional<daemon::Fault>& fault = job_->machine().fault();
  if (!fault) {
    ELIXIR_EXPECT(told_.empty(), "a rank heard of a fault that there was not");
    ELIXIR_EXPECT(job_->machine().all_detached(), "the job ended by itself");
  } else {
    ELIXIR_EXPECT(fault->rank < ranks() || fault->rank == daemon::kNoRank, "rank {}", fault->rank);
    // A rank's fault, or one of the machine's: memory, or elixird was stopped.
    const bool ours = fault->code == Code::kUnavailable || fault->code == Code::kResourceExhausted;
    ELIXIR_EXPECT(ours || fault->rank != daemon::kNoRank, "nobody is named: {}", fault->text);
    for (const Told& told : told_) {
      const bool named = told.cause == daemon::kNoRank || told.cause >= setup_.first_rank;
      ELIXIR_EXPECT(named && told.code != Code::kOk, "rank {} hears of rank {}", told.rank,
                    told.cause);
    }
  }
  uint32_t claimed = 0;
  for (const auto& session : job_->sessions()) claimed += session != nullptr ? 1 : 0;
  ELIXIR_EXPECT(closed_.size() == claimed, "{} sockets of {} are closed", closed_.size(), claimed);
}

void FuzzedJob::check_counts() const {
  if (!counts_ || job_->work() == nullptr) return;
  if (job_->phase() != JobPhase::kTraining && job_->phase() != JobPhase::kEnding) return;
  if (replies == 0) return;  // not loaded
  updates_.check_chunks(*job_);
  updates_.check_elements(*job_);
}

void FuzzedJob::check_numbers() const {
  if (meddled_ || job_->work() == nullptr || replies == 0) return;
  if (job_->machine().activity() != Activity::kNone) return;
  const uint32_t finished = job_->machine().finished_step();
  ELIXIR_EXPECT(finished <= setup_.steps, "step {} was never made", finished);
  for (const shm::ParameterPlace& place : setup_.model.places) {
    if (setup_.model.shape.frozen(place.chunk)) continue;
    const shm::ChunkRun run = shm::chunks_of(place, setup_.model.shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      const uint32_t step = std::max(memory(0)->chunk_record(chunk).param_step.load(),
                                     memory(0)->header().skipped_through.load());
      ELIXIR_EXPECT(step == finished || (setup_.rules.immediate != 0 && step == finished + 1),
                    "chunk {} is of step {} after step {}", chunk, step, finished);
      check_numbers_of(place, chunk, step);
    }
  }
}

void FuzzedJob::check_numbers_of(const shm::ParameterPlace& place, uint32_t chunk,
                                 uint32_t step) const {
  const shm::Shape& shape = setup_.model.shape;
  const ChunkNumbers& want = reference_of(setup_, step, chunk);
  const shm::ParameterPart part = shm::part_in(place, shape, chunk);
  const uint64_t element = element_bytes(shape.type);
  float masters[kMostNumel];
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    const SessionMemory& have = *memory(rank);
    const uint32_t slot = have.chunk_record(chunk).slot.load();
    const uint64_t shard = shape.shard_begin(session(rank).rank);
    const uint64_t begin = std::max(part.offset, shard);
    const uint64_t end = std::min(part.offset + part.numel, shape.shard_end(session(rank).rank));
    if (begin >= end) continue;
    const uint64_t at = begin - shard, numel = end - begin, floats = numel * sizeof(float);
    optim::read_master(shape.type, have.param(slot, at), have.master(slot, at), numel, masters);
    const bool equal =
        std::memcmp(masters, want.masters.data() + begin, floats) == 0 &&
        std::memcmp(have.param(slot, at), want.param.data() + begin * element, numel * element) ==
            0 &&
        std::memcmp(have.moment(0, slot, at), want.exp_avg.data() + begin, floats) == 0 &&
        std::memcmp(have.moment(1, slot, at), want.exp_avg_sq.data() + begin, floats) == 0;
    ELIXIR_EXPECT(equal, "'{}' on rank {} differs from the reference after step {}", place.name,
                  rank, step);
  }
}

}  // namespace elixir::fuzz
