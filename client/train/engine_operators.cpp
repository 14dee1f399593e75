// What operators ask of an engine: their chunks, gathered and pinned. Data path, hop 6 of 6.
//
// Any thread may run operators. One mutex guards all that they touch here (the rCache, the blocks,
// the exchange's gathers, the gradients' way down); it is never held while an operator runs, so
// operators of several threads overlap. Pins make that right: a block that an operator reads is not
// taken from it.

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "base/check.h"
#include "base/throw_error.h"
#include "client/tensors/region_observer.h"
#include "client/train/engine.h"

namespace elixir {
namespace {

// Without gradients run evaluations, but also backward, and the forward of checkpointed regions.
RCache::Use use_now() {
  const bool evaluates = !at::GradMode::is_enabled() &&
                         torch::autograd::get_current_graph_task_id() == -1 &&
                         !in_checkpointed_region();
  return evaluates ? RCache::Use::kEvaluation : RCache::Use::kStep;
}

}  // namespace

// The chunk's parameters of the last step come into the block that it was given.
void Engine::fill(uint32_t chunk, const RCache::Placement& placement) {
  if (placement.evicted != RCache::kNone) storages_[placement.evicted]->place(nullptr);
  ELIXIR_CHECK(chunk < storages_.size() && placement.block < blocks_.size(),
               "chunk {} of {} into block {} of {}", chunk, storages_.size(), placement.block,
               blocks_.size());
  try {
    gather(chunk, blocks_[placement.block]);
  } catch (...) {
    rcache_->abandon(chunk);
    throw;
  }
}

// One chunk, or all that hold a long parameter, one behind the other.
void Engine::gather(uint32_t first, const Block& block) {
  const shm::Shape& shape = run_plan_.shape;
  // What is filled behind a chunk's end would come over the next one's beginning.
  const bool in_turn = exchange_->block_bytes() > shape.chunk_bytes();
  for (uint32_t chunk = first; chunk < first + runs_[first]; ++chunk) {
    if (grad_offload_->has_all_gradients(chunk) && !shape.on_gpu(chunk)) {
      throw Error(
          error(Code::kInvalidArgument,
                "parameters of chunk {} are read after all their gradients of step {} have "
                "come, before step(): with immediate updates they may have changed by "
                "then; read them after step(), set accumulate to the number of backward passes "
                "a step, or use early or deferred updates (--update early)",
                chunk, control_.step() + 1));
    }
    exchange_->gather(chunk, control_.step(), block.memory + (chunk - first) * shape.chunk_bytes(),
                      in_turn && chunk > first ? block.filled : block.unused, block.filled);
  }
}

bool Engine::acquire_one(uint32_t chunk) {
  if (has_own_block(chunk)) return true;
  const uint32_t pinned = rcache_->n_pinned();
  const std::optional<RCache::Placement> placement = rcache_->pin(chunk, use_now());
  if (!placement) return false;
  if (placement->presence == RCache::Presence::kHere) {
    const bool first = rcache_->n_pinned() > pinned;  // of the operators that use it now
    if (first) storages_[chunk]->place(blocks_[placement->block].memory);
    return true;
  }
  const StepMeter::Stall stall(meter_);
  if (placement->presence == RCache::Presence::kMissing) fill(chunk, *placement);
  const Block& block = blocks_[placement->block];
  try {
    device_->wait(Stream::kCompute, block.filled);
  } catch (...) {
    rcache_->abandon(chunk);  // nobody is told to unpin it
    throw;
  }
  storages_[chunk]->place(block.memory);
  return true;
}

// Runs while an operator's own error goes up, too: what the device refuses here is kept.
void Engine::release_one(uint32_t chunk) noexcept {
  if (has_own_block(chunk)) return;
  const uint32_t block = rcache_->block_of(chunk);
  if (!rcache_->unpin(chunk)) return;
  storages_[chunk]->close();
  try {
    device_->record(blocks_[block].unused, Stream::kCompute);
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
}

// Other threads' end by themselves.
void Engine::await_operators(const char* who, MutexLock& lock) {
  const OperatorGate::Inside& inside = gate_.inside();
  if (inside.operators > 0 || inside.scopes > 0) {
    throw Error(error(Code::kInvalidArgument,
                      "{} inside of {}, which has to end first: call it afterwards", who,
                      inside.operators > 0 ? "an operator that reads parameters"
                                           : "the scope of elixir::consistent()"));
  }
  gate_.close();
  gate_.await_none(lock);
  gate_.open(lock);  // those that wait there wait for the mutex now
}

Engine::ClosedGate::~ClosedGate() {
  const MutexLock lock(engine_.mutex_);
  engine_.gate_.open(lock);
}

void Engine::begin_scope() {
  throw_in_child("elixir::consistent()");
  MutexLock lock(mutex_);
  gate_.pass(OperatorGate::Kind::kScope, lock);
  gate_.begin_scope();
}

void Engine::end_scope() noexcept {
  if (in_child()) return;
  const MutexLock lock(mutex_);
  gate_.end_scope();
}

void Engine::throw_if_failed() const {
  if (failure_) std::rethrow_exception(failure_);
  throw_if_error(session_->status());
}

// Brings what the recorded order needs next into blocks that have room for it.
void Engine::prefetch() {
  if (control_.synchronous()) return;
  while (const std::optional<uint32_t> chunk = rcache_->next_fetch()) {
    if (!ready(*chunk)) return;
    fill(*chunk, rcache_->start_fetch());
  }
}

bool Engine::ready(uint32_t first) {
  for (uint32_t chunk = first; chunk < first + runs_[first]; ++chunk) {
    if (!exchange_->ready(chunk, control_.step())) return false;
  }
  return true;
}

// All of them, or none: false where no block is left.
bool Engine::acquire_all(std::span<const uint32_t> chunks) {
  size_t done = 0;
  try {
    while (done < chunks.size() && acquire_one(chunks[done])) ++done;
    if (done == chunks.size()) {
      prefetch();
      meter_.operators_run();
      return true;
    }
  } catch (...) {
    for (size_t i = 0; i < done; ++i) release_one(chunks[i]);
    throw;
  }
  for (size_t i = 0; i < done; ++i) release_one(chunks[i]);
  return false;
}

void Engine::pin(std::span<const uint32_t> chunks, const char* operator_name, MutexLock& lock) {
  for (;;) {
    gate_.pass(OperatorGate::Kind::kOperator, lock);
    throw_if_failed();
    // After each sleep: another thread's stream may have had the device meanwhile.
    device_->begin_operator(operator_name);
    if (device_update_pending_) {
      const StepMeter::Stall stall(meter_);
      apply_device_update();
    }
    if (acquire_all(chunks)) return;
    // Operators that wait themselves, for blocks to be used inside of them, give none back.
    const uint32_t own = gate_.inside().operators;
    if (gate_.operators() <= waiting_inside_ + own) throw_no_room(chunks, operator_name);
    waiting_inside_ += own;
    unpinned_.wait(lock);  // of other threads' operators, which end by themselves
    waiting_inside_ -= own;
  }
}

void Engine::throw_no_room(std::span<const uint32_t> chunks, const char* operator_name) {
  uint32_t one = chunks.front(), needed = 0;  // of the kind that is wanting
  for (const bool in_long : {true, false}) {
    needed = 0;
    for (const uint32_t chunk : chunks) {
      if (has_own_block(chunk) || rcache_->is_long(chunk) != in_long) continue;
      one = chunk;
      ++needed;
    }
    if (needed > 0 && rcache_->n_pinned_beside(one) + needed > rcache_->n_blocks_for(one)) break;
  }
  const uint32_t blocks = rcache_->n_blocks_for(one), pinned = rcache_->n_pinned_beside(one);
  if (rcache_->is_long(one)) {
    throw Error(error(Code::kResourceExhausted,
                      "{} reads {} parameters at once that are longer than a chunk, and there are "
                      "{} long blocks, {} of them in use: give it at least {} "
                      "(Options::layout.long_blocks, --long-blocks)",
                      operator_name, needed, blocks, pinned, pinned + needed));
  }
  throw Error(
      error(Code::kResourceExhausted,
            "{} reads parameters of {} chunks at once and the rCache has {} blocks, {} of "
            "them in use: give it at least {} (Options::layout.rcache_blocks, --rcache-blocks)",
            operator_name, needed, blocks, pinned, pinned + needed));
}

// First the device, by every thread that has used a chunk: it may have enqueued work on a stream of
// its own since another one's was kCompute, which the last of them alone would not know of.
void Engine::unpin(std::span<const uint32_t> chunks) noexcept {
  try {
    device_->end_operator();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  for (uint32_t chunk : chunks) release_one(chunk);
}

void Engine::acquire(std::span<const uint32_t> chunks, const char* operator_name) {
  throw_in_child(operator_name);
  MutexLock lock(mutex_);
  pin(chunks, operator_name, lock);
  gate_.begin_operator();
}

void Engine::release(std::span<const uint32_t> chunks) noexcept {
  const MutexLock lock(mutex_);
  unpin(chunks);
  gate_.end_operator();
  unpinned_.notify_all();
}

void Engine::hold(std::span<const uint32_t> chunks, const char* holder) {
  throw_in_child(holder);
  MutexLock lock(mutex_);
  pin(chunks, holder, lock);
}

void Engine::let_go(std::span<const uint32_t> chunks) noexcept {
  if (in_child()) return;
  const MutexLock lock(mutex_);
  unpin(chunks);
  unpinned_.notify_all();
}

// In a forked child the memory is there and the threads behind it are not.
void Engine::throw_in_child(const char* operator_name) const {
  if (!in_child()) return;
  throw Error(error(Code::kInvalidArgument,
                    "{} on a parameter in a forked child of the trainer: elixird's memory and the "
                    "device belong to the process that built the optimizer; copy what the child "
                    "needs before fork(), or start it as a program of its own",
                    operator_name));
}

}  // namespace elixir
