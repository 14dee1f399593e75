#include "client/train/engine.h"

#include <ATen/core/Tensor.h>

#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "client/train/weights.h"

namespace elixir {
namespace {

// Throws when two threads gather at the same moment: chunks belong to one thread at a time. Catches
// the misuse sooner or later, not each time.
class OneThread {
 public:
  explicit OneThread(std::atomic<bool>& busy) : busy_(busy) {
    // Acquire and release order nothing but this flag's own holder; contention is a misuse.
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw Error(error(Code::kInvalidArgument,
                        "two threads run operators on one model's parameters at the same time: run "
                        "the model from one thread"));
    }
  }
  ~OneThread() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

// The chunk's parameters of the last step come into the block that it was given.
void Engine::fill(uint32_t chunk, const RCache::Placement& placement) {
  if (placement.evicted != RCache::kNone) storages_[placement.evicted]->place(nullptr);
  ELIXIR_CHECK(chunk < storages_.size() && placement.block < blocks_.size(),
               "chunk {} of {} into block {} of {}", chunk, storages_.size(), placement.block,
               blocks_.size());
  const Block& block = blocks_[placement.block];
  try {
    if (grad_offload_->has_all_gradients(chunk) && !run_plan_.shape.on_gpu(chunk)) {
      throw Error(
          error(Code::kInvalidArgument,
                "parameters of chunk {} are read after all their gradients of step {} have "
                "come, before step(): with immediate updates they may have changed by "
                "then; read them after step(), set accumulate to the number of backward passes "
                "a step, or use deferred updates (--update deferred)",
                chunk, control_.step() + 1));
    }
    exchange_->gather(chunk, control_.step(), block.memory, block.unused, block.filled);
  } catch (...) {
    rcache_->abandon(chunk);
    throw;
  }
}

bool Engine::acquire_one(uint32_t chunk) {
  if (has_own_block(chunk)) return true;
  const std::optional<RCache::Placement> placement = rcache_->pin(chunk);
  if (!placement) return false;
  if (placement->presence == RCache::Presence::kHere) return true;
  const StepMeter::Stall stall(meter_);
  if (placement->presence == RCache::Presence::kMissing) fill(chunk, *placement);
  const Block& block = blocks_[placement->block];
  device_->wait(Stream::kCompute, block.filled);
  storages_[chunk]->place(block.memory);
  return true;
}

// Runs while an operator's own error goes up, too: what the device refuses here is kept.
void Engine::release_one(uint32_t chunk) noexcept {
  if (has_own_block(chunk)) return;
  const uint32_t block = rcache_->block_of(chunk);
  if (!rcache_->unpin(chunk)) return;
  try {
    device_->record(blocks_[block].unused, Stream::kCompute);
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
}

void Engine::throw_if_failed() const {
  if (failure_) std::rethrow_exception(failure_);
}

// Brings what the recorded order needs next into blocks that have room for it.
void Engine::prefetch() {
  if (control_.synchronous()) return;
  while (const std::optional<uint32_t> chunk = rcache_->next_fetch()) {
    if (!exchange_->ready(*chunk, control_.step())) return;
    fill(*chunk, rcache_->start_fetch());
  }
}

void Engine::acquire(std::span<const uint32_t> chunks, const char* operator_name) {
  const OneThread one_thread(busy_);
  throw_if_failed();
  device_->begin_operator(operator_name);
  if (device_update_pending_) {
    const StepMeter::Stall stall(meter_);
    apply_device_update();
  }
  size_t done = 0;
  try {
    for (; done < chunks.size(); ++done) {
      if (acquire_one(chunks[done])) continue;
      throw Error(
          error(Code::kResourceExhausted,
                "{} reads parameters of {} chunks at once and the rCache has {} blocks, {} of "
                "them in use: give it at least {} (--rcache-blocks)",
                operator_name, chunks.size(), rcache_->n_blocks(), rcache_->n_pinned(),
                rcache_->n_pinned() - done + chunks.size()));
    }
    prefetch();
    meter_.operators_run();
  } catch (...) {
    for (size_t i = 0; i < done; ++i) release_one(chunks[i]);
    throw;
  }
}

void Engine::release(std::span<const uint32_t> chunks) noexcept {
  for (uint32_t chunk : chunks) release_one(chunk);
  try {
    device_->end_operator();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
}

void Engine::check_views() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (chunk_storage_of(parameters_[i].tensor) ==
        storages_[run_plan_.chunks.places[i].chunk].get()) {
      continue;
    }
    throw Error(
        error(Code::kInvalidArgument,
              "parameter '{}' was given other data after the optimizer was built (module.to() "
              "or set_data does that): move or cast the module before",
              parameters_[i].name));
  }
}

void Engine::take_gradient(uint32_t parameter, const at::Tensor& grad) {
  ELIXIR_CHECK(parameter < parameters_.size(), "parameter {} of {}", parameter, parameters_.size());
  throw_if_failed();
  const StepMeter::Stall stall(meter_, grad_offload_->begins_micro_step(parameter)
                                           ? StepMeter::Waits::kOperators
                                           : StepMeter::Waits::kHost);
  open_step();
  grad_offload_->take(parameter, grad, control_.step() + 1);
}

// Immediate updates: elixird knows the hyperparameters before the first gradient.
void Engine::open_step() {
  if (!control_.immediate() || control_.fixed()) return;
  session_->open_step(control_.next_record());
  control_.fix_next();
}

// What this rank did since the last step, into the record and into stats().
void Engine::add_stats(shm::StepRecord& record) {
  meter_.end_step(record.step);
  take_times();
  StepStats now;
  now.gathers = rcache_->gathers();
  now.hits = rcache_->hits();
  now.evictions = rcache_->evictions();
  now.h2d_bytes = device_->h2d_bytes();
  now.d2h_bytes = device_->d2h_bytes();
  now.d2d_bytes = exchange_->d2d_bytes();
  const StepStats& before = counters_at_step_;
  stats_.step = record.step;
  stats_.gathers = record.gathers = now.gathers - before.gathers;
  stats_.hits = now.hits - before.hits;
  stats_.evictions = record.evictions = now.evictions - before.evictions;
  stats_.h2d_bytes = record.h2d_bytes = now.h2d_bytes - before.h2d_bytes;
  stats_.d2h_bytes = record.d2h_bytes = now.d2h_bytes - before.d2h_bytes;
  stats_.d2d_bytes = record.d2d_bytes = now.d2d_bytes - before.d2d_bytes;
  counters_at_step_ = now;
  const shm::StepResult updated = session_->last_finished();
  stats_.update_numel_per_s = updated.update_ns == 0
                                  ? 0
                                  : 1e9 * static_cast<double>(updated.updated_numel) /
                                        static_cast<double>(updated.update_ns);
  record.step_ns = legs_.step_ns;
  record.exposed_ns = legs_.exposed_ns;
  record.h2d_ns = legs_.h2d_ns;
  record.d2h_ns = legs_.d2h_ns;
  record.device_bytes = device_->allocated_bytes();
  record.pageable_bytes = pinned_->refused_bytes();
}

// The times of steps that are known by now: of this one on a CPU, of earlier ones on a GPU.
void Engine::take_times() {
  while (const std::optional<StepLegs> legs = meter_.next()) {
    legs_ = *legs;
    const shm::StepResult updated = session_->last_finished();
    legs_.update_ns = updated.update_ns;
    legs_.update_numel = updated.updated_numel;
    stats_.roofline = rooflines_[legs_.step % kKeptRooflines] = meter_.roofline(legs_);
    if (!plan_check_ || legs_.step > PlanCheck::kLastStep) continue;
    const std::optional<std::string> text =
        plan_check_->add(legs_.step, stats_.roofline, device_->peak_bytes());
    if (text && environment_.rank == 0) log_info("plan_check", "{}", *text);
  }
}

Roofline Engine::roofline(uint32_t step) {
  take_times();
  const Roofline& kept = rooflines_[step % kKeptRooflines];
  return kept.step == step ? kept : Roofline{};
}

void Engine::step(std::optional<double> loss) {
  end_step(loss.value_or(std::numeric_limits<double>::quiet_NaN()), nullptr);
}

void Engine::step(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1 || loss.is_complex()) {
    throw Error(error(Code::kInvalidArgument,
                      "step(loss) takes a tensor of one real number: give it the mean of the "
                      "losses, or a double"));
  }
  // From another device torch brings it, which waits.
  if (loss.is_cpu() || loss.device() != torch_device(*device_)) return step(loss.item<double>());
  throw_if_failed();
  end_step(std::numeric_limits<double>::quiet_NaN(), losses_.bring(control_.step() + 1, loss));
}

at::Tensor Engine::to_device(const at::Tensor& values) { return inputs_.upload(values); }

// `late_loss`: null, or where the loss will be when all that is enqueued on kDownload is done.
void Engine::end_step(double loss, const double* late_loss) {
  throw_if_failed();
  if (rcache_->n_pinned() != 0) {
    throw Error(error(Code::kInvalidArgument,
                      "step() while elixir::gathered() holds parameters: end its scope first"));
  }
  check_views();
  meter_.operators_end(control_.step() + 1);
  {
    const StepMeter::Stall stall(meter_, StepMeter::Waits::kHost);
    apply_device_update();
    open_step();
    control_.loss_scale(*session_);  // that of the step's losses, if nobody asked
    grad_offload_->complete(control_.step() + 1);
  }
  shm::StepRecord record = control_.next_record();
  record.metric = loss;
  add_stats(record);
  if (trace_) trace_->end_step(record.step, *session_);
  const StepMeter::Stall stall(meter_, StepMeter::Waits::kHost);
  exchange_->post(record, late_loss);
  grad_offload_->forget();
  control_.posted(loss, late_loss);
  device_update_pending_ = run_plan_.shape.n_gpu_chunks > 0;
  if (environment_.world_size == 1 && !control_.rules().norms) apply_device_update();
  end_rcache_step();
  forget_gathered();
  if (control_.synchronous()) synchronize();
  // As an optimizer's in-place update does: a graph from before the step cannot be run backward.
  for (const ModuleParameter& parameter : parameters_) {
    if (parameter.frozen) break;
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void Engine::end_rcache_step() {
  const bool departed = rcache_->end_step();
  if (!departed || said_departed_) return;
  log_info("order_of_use_changed",
           "step={} effect=\"gathers by least recent use in such a step, then re-recorded\"",
           control_.step());
  said_departed_ = true;
}

// The last step's update of chunks placed on the GPU, which may have to wait for its verdict.
void Engine::apply_device_update() {
  if (!device_update_pending_) return;
  device_update_pending_ = false;
  const uint32_t step = control_.step();
  if (environment_.world_size == 1 && !control_.rules().norms) {
    return exchange_->update_on_device(control_.constants_unclipped());
  }
  const shm::StepResult result = control_.outcome(*session_, step).result;
  if (result.skipped == 0) exchange_->update_on_device(control_.constants(result));
}

void Engine::zero_grad() { grad_offload_->discard(); }

StepOutcome Engine::outcome(uint32_t step) {
  if (step == 0 || step > control_.step() || control_.step() - step > 1) {
    throw Error(error(Code::kInvalidArgument,
                      "the outcome of step {}: only those of the last two steps are kept, {} was "
                      "the last",
                      step, control_.step()));
  }
  const StepControl::Outcome outcome = control_.outcome(*session_, step);
  return {step, exchange_->mean_metric(step, outcome.loss), outcome.result.grad_norm,
          outcome.loss_scale, outcome.result.skipped != 0};
}

void Engine::synchronize() {
  apply_device_update();
  exchange_->synchronize(control_.step());
}

double Engine::loss_scale() {
  const StepMeter::Stall stall(meter_);
  return control_.loss_scale(*session_);
}

uint64_t Engine::weights_xxh64() {
  if (grad_offload_->pending()) {
    throw Error(error(Code::kInvalidArgument,
                      "weights_xxh64() between backward() and step(): call it after step()"));
  }
  synchronize();
  return masters_xxh64(*exchange_, run_plan_);
}

}  // namespace elixir
