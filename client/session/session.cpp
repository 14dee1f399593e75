// Data path, hop 2 of 6: a rank publishes its gradients and what it asks of the step.

#include "client/session/session.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "shm/futex.h"
#include "shm/messages.h"

namespace elixir {
namespace {

constexpr int64_t kWaitSliceNs = 50'000'000;  // how soon a death is noticed
constexpr int kSpins = 2000;                  // about 20 us, before the first sleep

constexpr uint32_t kMaxStepsAhead = 2;  // of elixird, as shm/layout.h promises it

}  // namespace

shm::ControlHeader& Session::header() const {
  return *reinterpret_cast<shm::ControlHeader*>(control_->data());
}

shm::StepResult& Session::step_result(uint32_t step) const {
  auto* results =
      reinterpret_cast<shm::StepResult*>(control_->data() + shape_.step_results_offset());
  return results[step % shm::kStepRing];
}

shm::UpdateResult& Session::update_result(uint32_t step) const {
  auto* results =
      reinterpret_cast<shm::UpdateResult*>(control_->data() + shape_.update_results_offset());
  return results[step % shm::kStepRing];
}

shm::GradRecord& Session::grad_record(uint32_t chunk) const {
  ELIXIR_CHECK(chunk < shape_.n_chunks, "chunk {} of {} that have gradients", chunk,
               shape_.n_chunks);
  auto* records =
      reinterpret_cast<shm::GradRecord*>(control_->data() + shape_.grad_records_offset());
  return records[chunk];
}

shm::ChunkRecord& Session::chunk_record(uint32_t chunk) const {
  ELIXIR_CHECK(chunk < shape_.n_grad_slots(), "chunk {} of {} that have a record", chunk,
               shape_.n_grad_slots());
  auto* records =
      reinterpret_cast<shm::ChunkRecord*>(control_->data() + shape_.chunk_records_offset());
  return records[chunk];
}

std::byte* Session::grad_slot(uint32_t chunk) const {
  ELIXIR_CHECK(chunk < shape_.n_grad_slots(), "chunk {} of {} that have a grad slot", chunk,
               shape_.n_grad_slots());
  return grads_->data() + shape_.grad_slot_offset(chunk);
}

std::vector<HostRange> Session::device_ranges() const {
  if (options_.pins_params == 0) return {};
  const uint64_t grad_slot_bytes = shape_.grad_slot_numel() * element_bytes(shape_.type);
  std::vector<HostRange> ranges = {{grads_->data(), grads_->bytes(), grad_slot_bytes}};
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!reads_params_of(rank)) continue;
    const shm::Segment& params = ranks_[rank].params;
    ranges.push_back({params.data(), params.bytes(), shape_.shard_bytes()});
    const auto& [swing, grads] = std::tie(ranks_[rank].swing, ranks_[rank].grads);
    if (swing) ranges.push_back({swing->data(), swing->bytes(), shape_.swing_slot_bytes()});
    const bool others = shape_.n_swing_chunks > 0 && grads && rank != options_.local_rank;
    if (others) ranges.push_back({grads->data(), grads->bytes(), grad_slot_bytes});
  }
  return ranges;
}

Status Session::protect_params() {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    RankMemory& memory = ranks_[rank];
    // Note: docs/design/elixir.md, "page-locked memory".
    ELIXIR_RETURN_IF_ERROR(memory.params.protect());
    if (memory.grads) ELIXIR_RETURN_IF_ERROR(memory.grads->protect());
    const bool others = memory.swing && rank != options_.local_rank;
    if (others) ELIXIR_RETURN_IF_ERROR(memory.swing->protect());
  }
  return Status();
}

template <typename Message>
Status Session::ring(const Message& doorbell) {
  const MutexLock lock(ring_mutex_);
  return control_channel_->post(doorbell);
}
template Status Session::ring(const shm::StagedChunk& doorbell);

shm::StepRecord& Session::step_record(uint32_t step) const {
  auto* records =
      reinterpret_cast<shm::StepRecord*>(control_->data() + shape_.step_records_offset());
  return records[step % shm::kStepRing];
}

void Session::open_step(const shm::StepRecord& record) {
  ELIXIR_CHECK(options_.rules.opens_steps(), "step {} is opened, and updates follow the post",
               record.step);
  step_record(record.step) = record;
  // Release: the record above is there. Pairs with the acquire in daemon/.
  header().open_step.store(record.step, std::memory_order_release);
}

Status Session::publish_grad(uint32_t chunk, const PublishedGrads& of) {
  ELIXIR_CHECK(chunk < revisions_.size() && of.step > 0 && of.micro_step > 0,
               "micro-step {} of step {} of chunk {}: both count from 1", of.micro_step, of.step,
               chunk);
  shm::GradRecord& record = grad_record(chunk);
  shm::GradPublication publication;
  publication.revision = revisions_[chunk].fetch_add(1, std::memory_order_relaxed) + 1;
  publication.discards = of.discards;
  publication.to_sum = of.to_sum ? 1 : 0;
  record.grad_step.store(of.step, std::memory_order_relaxed);
  record.grad_micro_step.store(of.micro_step, std::memory_order_relaxed);
  // Release: the slot's bytes and the words above are visible to whoever sees the revision. Pairs
  // with the acquire in daemon/.
  record.grad_publication.store(publication, std::memory_order_release);
  // Release: the record above; pairs with the acquire in daemon/publications.
  header().publications.fetch_add(1, std::memory_order_release);
  return of.to_sum || options_.rules.rings_all() ? ring_grads(chunk) : Status();
}

Status Session::request_sum(uint32_t chunk) {
  std::atomic<shm::GradPublication>& last = grad_record(chunk).grad_publication;
  shm::GradPublication publication = last.load(std::memory_order_relaxed);
  if (publication.to_sum != 0) return Status();
  publication.to_sum = 1;
  // Release: for who sees it first, as publish_grad().
  last.store(publication, std::memory_order_release);
  header().publications.fetch_add(1, std::memory_order_release);
  return ring_grads(chunk);
}

Status Session::ring_grads(uint32_t chunk) {
  shm::GradsPublished doorbell{};
  doorbell.chunk = chunk;
  return ring(doorbell);
}

Session::Wait Session::taken_wait(uint32_t chunk) const {
  ELIXIR_CHECK(chunk < revisions_.size(), "chunk {} of {}", chunk, revisions_.size());
  return {chunk_record(chunk).grad_taken,
          chunk_record(chunk).waiters,
          revisions_[chunk].load(std::memory_order_relaxed),
          "elixird's sum of a chunk's gradients, or another rank's gradient",
          shape_.ranks == 1 ? kNobodyElse : kOtherRanks,
          shm::WaitsFor::kSum};
}

bool Session::is_taken(uint32_t chunk) const { return reached(taken_wait(chunk)); }

Status Session::wait_taken(uint32_t chunk) {
  const Wait wait = taken_wait(chunk);
  if (shape_.ranks == 1 || reached_soon(wait)) return wait_word(wait);
  // Release: what the rank has published; pairs with the acquire in daemon/publications.
  header().awaited_sum.store(chunk + 1, std::memory_order_release);
  // Relaxed: the next publication releases it.
  struct NoLonger {
    std::atomic<uint32_t>& word;
    ~NoLonger() { word.store(0, std::memory_order_relaxed); }
  };
  const NoLonger waits{header().awaited_sum};
  ELIXIR_RETURN_IF_ERROR(ring_grads(chunk));
  return wait_word(wait);
}

Status Session::post_step(const shm::StepRecord& record) {
  ELIXIR_CHECK(record.step > 0, "steps count from 1");
  if (record.step > kMaxStepsAhead) {
    ELIXIR_RETURN_IF_ERROR(wait_committed(record.step - kMaxStepsAhead).status());
  }
  posted_.store(record.step, std::memory_order_relaxed);  // for a check: orders nothing
  interrupts_at_post_.store(interrupts(), std::memory_order_relaxed);
  step_record(record.step) = record;
  step_record(record.step).late_wakes = late_wakes_.load(std::memory_order_relaxed);
  // Release: the record above is complete. Pairs with the acquire in daemon/doorbells.
  header().posted_step.store(record.step, std::memory_order_release);
  shm::StepPosted doorbell{};
  doorbell.step = record.step;
  return ring(doorbell);
}

std::span<shm::GradGroup> Session::grad_groups(uint32_t step) const {
  auto* const groups =
      reinterpret_cast<shm::GradGroup*>(control_->data() + shape_.grad_groups_offset(step));
  return {groups, shape_.n_parameters};
}

std::span<const shm::UpdateCount> Session::update_counts() const {
  ELIXIR_CHECK(shape_.tells_updates(), "elixird tells no counts to {} ranks", shape_.ranks);
  const auto* const counts =
      reinterpret_cast<const shm::UpdateCount*>(control_->data() + shape_.update_counts_offset());
  return {counts, shape_.n_parameters};
}

void Session::say_gradient(uint32_t step, uint32_t parameter, uint32_t group) {
  ELIXIR_CHECK(parameter < shape_.n_parameters && group < shm::kMaxParamGroups,
               "parameter {} of {}, of group {}", parameter, shape_.n_parameters, group);
  // Relaxed: publish_grad() releases it, or post_step().
  grad_groups(step)[parameter].store(static_cast<uint8_t>(group + 1), std::memory_order_relaxed);
}

void Session::forget_gradients(uint32_t step) {
  for (shm::GradGroup& group : grad_groups(step)) {
    group.store(shm::kNoGradient, std::memory_order_relaxed);
  }
}

void Session::fail(const Status& status) {
  const MutexLock lock(fault_mutex_);
  if (fault_.ok()) fault_ = status;
}

bool Session::reached(const Wait& wait) const {
  // Acquire, of all: pairs with elixird's release after it wrote what the word announces.
  if (wait.word.load(std::memory_order_acquire) >= wait.number) {
    swung_.load(std::memory_order_acquire);  // see there
    return true;
  }
  if (wait.or_ended != 0 &&
      header().ended_request.load(std::memory_order_acquire) >= wait.or_ended) {
    return true;
  }
  return wait.is_param_step &&
         header().skipped_through.load(std::memory_order_acquire) >= wait.number;
}

// The only rank has posted it, so that elixird alone is missing. Others may not have, and have
// swing chunks to update after the verdict: elixird says which of them does not.
uint32_t Session::alone_after(uint32_t step, bool swings) const {
  if (swings && shape_.ranks > 1) return kOtherRanks;
  const bool posted = step <= posted_.load(std::memory_order_relaxed);  // a hint: orders nothing
  return shape_.ranks == 1 && posted ? kNobodyElse : step;
}

bool Session::reached_soon(const Wait& wait) const {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (reached(wait)) return true;
  }
  return false;
}

Status Session::wait_word(const Wait& wait) {
  if (wait.committed == kOtherRanks) waits_for_ranks_.fetch_add(1, std::memory_order_relaxed);
  if (reached_soon(wait)) return Status();
  const shm::Waiter sleeps(wait.waiters);
  std::optional<shm::Waiter> sleeps_on_params;  // a skipped step moves no word but theirs
  if (wait.is_param_step) sleeps_on_params.emplace(header().param_waiters);
  const int64_t start_ns = monotonic_ns();
  int64_t alone_since_ns = 0;  // 0: others are waited for
  WaitNotes notes(30, 30);
  SaysWait says(header().said_wait);
  for (;;) {
    const uint32_t seen = wait.word.load(std::memory_order_relaxed);
    if (reached(wait)) return Status();
    ELIXIR_RETURN_IF_ERROR(check_wait());
    const bool alone = wait.committed != kOtherRanks &&
                       header().committed_step.load(std::memory_order_relaxed) >= wait.committed;
    if (alone && (alone_since_ns == 0 || folder_under_way())) alone_since_ns = monotonic_ns();
    if (notes.due(seconds_since(start_ns))) {
      log_info("waiting", "for=\"{}\" number={}", wait.what, wait.number);
    }
    if (alone && seconds_since(alone_since_ns) > request_timeout_s_) {
      return error(Code::kTimedOut,
                   "waited {:.0f} s for {}, and elixird lives but does not move on: look at its "
                   "log, and whether it is stopped or its machine out of memory",
                   request_timeout_s_, wait.what);
    }
    says.say(wait.says, wait.rank, start_ns);
    if (shm::futex_wait(wait.word, seen, kWaitSliceNs)) {
      late_wakes_.fetch_add(1, std::memory_order_relaxed);  // a count: orders nothing
    }
  }
}

Status Session::wait_param(uint32_t chunk, uint32_t step) {
  return wait_word({chunk_record(chunk).param_step, chunk_record(chunk).waiters, step,
                    shape_.swings(chunk) ? "trainers' update of a swing chunk"
                                         : "elixird's update of a chunk after a step",
                    alone_after(step, shape_.swings(chunk)),
                    shape_.swings(chunk) ? shm::WaitsFor::kSwing : shm::WaitsFor::kNothing,
                    SaysWait::kUnknownRank, /*is_param_step=*/true});
}

uint32_t Session::param_step(uint32_t chunk) const {
  // Acquire, of both: pairs with elixird's release after it wrote the slots.
  return std::max(chunk_record(chunk).param_step.load(std::memory_order_acquire),
                  header().skipped_through.load(std::memory_order_acquire));
}

Result<shm::StepResult> Session::wait_committed(uint32_t step) {
  const uint32_t posted = posted_.load(std::memory_order_relaxed);
  ELIXIR_CHECK(step + shm::kStepRing - 2 > posted, "the result of step {} is over, {} is posted",
               step, posted);
  ELIXIR_RETURN_IF_ERROR(wait_word(
      {header().committed_step, header().waiters, step,
       shape_.ranks == 1 ? "elixird's verdict on a step" : "the other ranks to call step()",
       shape_.ranks == 1 ? kNobodyElse : kOtherRanks}));
  const shm::StepResult& result = step_result(step);
  // A field by itself, too: the thread sanitizer does not see how the whole is copied.
  if (result.step != step) {
    return error(Code::kInternal, "step {} is committed with the result of step {}", step,
                 result.step);
  }
  return result;
}

uint32_t Session::committed_step() const {
  // Acquire: as in wait_word.
  const uint32_t committed = header().committed_step.load(std::memory_order_acquire);
  return std::min(committed, posted_.load(std::memory_order_relaxed));
}

Status Session::wait_finished(uint32_t step) {
  const char* const what = shape_.n_swing_chunks > 0
                               ? "elixird's update of a step, or trainers' of its swing chunks"
                               : "elixird's update of a step, or another rank to call step()";
  return wait_word({header().finished_step, header().waiters, step, what,
                    alone_after(step, shape_.n_swing_chunks > 0),
                    shape_.n_swing_chunks > 0 ? shm::WaitsFor::kSwing : shm::WaitsFor::kNothing});
}

shm::UpdateResult Session::last_finished() const {
  // Acquire: pairs with the release after UpdateResult was written.
  const uint32_t step = header().finished_step.load(std::memory_order_acquire);
  return step == 0 ? shm::UpdateResult{} : update_result(step);
}

}  // namespace elixir
