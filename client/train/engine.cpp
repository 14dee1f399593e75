#include "client/train/engine.h"

#include <ATen/Functions.h>

#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "client/regions/region_plan.h"
#include "client/tensors/resolved.h"
#include "client/train/weights.h"

namespace elixir {

// Immediate and early updates: elixird knows the hyperparameters before the first gradient.
void Engine::open_step() {
  if (!control_.opens_steps() || control_.opened()) return;
  if (pull_) pull_();
  session_->open_step(control_.next_record());
  control_.opened_next();
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
  now.recomputed_regions = regions_run_again();
  if (activation_store_ != nullptr) {
    const HostParcels::Traffic traffic = activation_store_->traffic();
    now.activation_d2h_bytes = traffic.down_bytes;
    now.activation_h2d_bytes = traffic.up_bytes;
    record.activation_bytes = traffic.host_bytes;
  }
  const StepStats& before = counters_at_step_;
  stats_.step = record.step;
  stats_.gathers = record.gathers = now.gathers - before.gathers;
  stats_.hits = now.hits - before.hits;
  stats_.evictions = record.evictions = now.evictions - before.evictions;
  stats_.h2d_bytes = record.h2d_bytes = now.h2d_bytes - before.h2d_bytes;
  stats_.d2h_bytes = record.d2h_bytes = now.d2h_bytes - before.d2h_bytes;
  stats_.d2d_bytes = record.d2d_bytes = now.d2d_bytes - before.d2d_bytes;
  stats_.recomputed_regions = now.recomputed_regions - before.recomputed_regions;
  stats_.activation_d2h_bytes = now.activation_d2h_bytes - before.activation_d2h_bytes;
  stats_.activation_h2d_bytes = now.activation_h2d_bytes - before.activation_h2d_bytes;
  counters_at_step_ = now;
  const shm::UpdateResult updated = session_->last_finished();
  stats_.update_numel_per_s = updated.update_ns == 0
                                  ? 0
                                  : 1e9 * static_cast<double>(updated.updated_numel) /
                                        static_cast<double>(updated.update_ns);
  stats_.early_chunks = updated.early_chunks;
  stats_.early_hits = updated.early_hits;
  stats_.swing_chunks = updated.swing_chunks;
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
    const shm::UpdateResult updated = session_->last_finished();
    legs_.update_ns = updated.update_ns;
    legs_.update_numel = updated.updated_numel;
    stats_.roofline = rooflines_[legs_.step % kKeptRooflines] = meter_.roofline(legs_);
    if (rates_keeper_) rates_keeper_->add(legs_.step, stats_.roofline, device_->peak_bytes());
  }
}

Roofline Engine::roofline(uint32_t step) {
  throw_in_child("roofline()");
  const MutexLock lock(mutex_);
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
  throw_in_child("step()");
  const at::Tensor value = StepLosses::number(loss);  // not under the mutex: by operators
  const double* late_loss = nullptr;
  {
    const MutexLock lock(mutex_);
    throw_if_failed();
    late_loss = losses_.bring(control_.step() + 1, value);
  }
  end_step(std::numeric_limits<double>::quiet_NaN(), late_loss);
}

at::Tensor Engine::to_device(const at::Tensor& values) {
  throw_in_child("to_device()");
  const c10::Device device = torch_device(*device_);
  if (values.device() == device) return values;
  if (!values.is_cpu()) return values.to(device);
  // Not under the mutex: what shares memory with a parameter is gathered.
  const at::Tensor plain = resolved(values.detach());
  const at::Tensor dense = plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
  const at::Tensor uploaded =
      at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(device));
  const MutexLock lock(mutex_);
  inputs_.upload(static_cast<std::byte*>(uploaded.mutable_data_ptr()), dense.const_data_ptr(),
                 dense.nbytes());
  return uploaded;
}

void Engine::require_outside_operators(MutexLock& lock) {
  throw_if_failed();
  await_operators("step()", lock);
  if (rcache_->n_pinned() == 0) return;
  throw Error(error(Code::kInvalidArgument,
                    "step() while elixir::gathered() holds parameters: end its scope first"));
}

// `late_loss`: null, or where the loss will be when all that is enqueued on kDownload is done.
void Engine::end_step(double loss, const double* late_loss) {
  throw_in_child("step()");
  if (n_trained() == 0) {
    throw Error(error(Code::kInvalidArgument,
                      "step() of a model of which no parameter requires gradients: there is "
                      "nothing to train"));
  }
  check_views();
  const ClosedGate gate(*this);
  {
    MutexLock lock(mutex_);
    require_outside_operators(lock);  // before gradients leave .grad
  }
  const Assigned assigned = assigned_gradients();
  MutexLock lock(mutex_);
  throw_if_failed();
  if (!assigned.dropped) require_none_lost();
  lost_gradient_ = !assigned.gradients.empty();  // until they are taken
  require_outside_operators(lock);
  meter_.operators_end(control_.step() + 1);
  {
    const StepMeter::Stall stall(meter_, StepMeter::Waits::kHost);
    apply_device_update();
    if (assigned.dropped) drop_gradients();
    lost_gradient_ = true;
    for (const auto& [parameter, grad] : assigned.gradients) {
      take(parameter, grad);
      taken_->mark(parameter);  // torch's stay until zero_grad()
    }
    lost_gradient_ = false;
    warn_of_old_gradients();
    taken_->note_zeroed();
    take_zeroed();
    open_step();
    control_.loss_scale(*session_);  // that of the step's losses, if nobody asked
    if (grad_offload_->pending()) control_.check_scale_asked();
    check_all_have_gradients();
    lost_gradient_ = true;
    grad_offload_->complete(control_.step() + 1);
    lost_gradient_ = false;
  }
  control_.note_decided(*session_);
  shm::StepRecord record = control_.next_record();
  record.metric = loss;
  add_stats(record);
  if (trace_) trace_->end_step(record.step, *session_);
  const StepMeter::Stall stall(meter_, StepMeter::Waits::kHost);
  exchange_->post(record, late_loss);
  if (swing_runner_) swing_runner_->post(record.step);
  grad_offload_->forget();
  taken_->end_step();
  control_.posted(loss, late_loss);
  device_update_pending_ = run_plan_.shape.n_gpu_chunks > 0;
  if (environment_.world_size == 1 && !control_.rules().norms) apply_device_update();
  session_->forget_gradients(control_.step() + 1);
  end_rcache_step();
  forget_gathered();
  bump_versions();  // before an interrupt can leave what follows
  share_buffers(*exchange_, shared_buffers_);
  if (control_.synchronous()) finish();
}

// As an optimizer's in-place update does: a graph from before the step that has saved what it
// updates cannot be run backward. Of several ranks any may have had the gradient.
void Engine::bump_versions() {
  const auto groups = session_->grad_groups(control_.step());
  for (uint32_t i = 0; i < n_trained(); ++i) {
    const bool updated = environment_.world_size > 1 ||
                         groups[i].load(std::memory_order_relaxed) != shm::kNoGradient;
    if (updated) parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();
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
  const uint32_t step = control_.step();
  if (environment_.world_size == 1 && !control_.rules().norms) {
    device_update_pending_ = false;
    return exchange_->update_on_device(control_.device_updates_unclipped(*session_));
  }
  // An interrupt may leave this wait, and the update is still to be made then.
  const shm::StepResult result = control_.outcome(*session_, step).result;
  device_update_pending_ = false;
  if (result.skipped == 0) {
    exchange_->update_on_device(control_.device_updates(*session_, result));
  }
}

StepOutcome Engine::outcome(uint32_t step) {
  throw_in_child("outcome()");
  if (step == 0 || step > control_.step() || control_.step() - step > 1) {
    throw Error(error(Code::kInvalidArgument,
                      "the outcome of step {}: only those of the last two steps are kept, {} was "
                      "the last",
                      step, control_.step()));
  }
  const StepControl::Outcome outcome = control_.outcome(*session_, step);
  return {.step = step,
          .mean_loss = exchange_->mean_metric(step, outcome.loss),
          .grad_norm = outcome.result.grad_norm,
          .loss_scale = outcome.loss_scale,
          .skipped = outcome.result.skipped != 0,
          .save_asked = (outcome.result.asks & shm::kAskSave) != 0,
          .stop_asked = (outcome.result.asks & shm::kAskStop) != 0};
}

void Engine::synchronize() {
  throw_in_child("synchronize()");
  const MutexLock lock(mutex_);
  finish();
}

// All that was posted is done.
void Engine::finish() {
  apply_device_update();
  exchange_->synchronize(control_.step());
}

double Engine::loss_scale() {
  throw_in_child("loss_scale()");
  const MutexLock lock(mutex_);
  const StepMeter::Stall stall(meter_);
  return control_.ask_loss_scale(*session_);
}

uint64_t Engine::weights_xxh64() {
  throw_in_child("weights_xxh64()");
  const MutexLock lock(mutex_);
  if (grad_offload_->pending()) {
    throw Error(error(Code::kInvalidArgument,
                      "weights_xxh64() between backward() and step(): call it after step()"));
  }
  finish();
  return masters_xxh64(*exchange_, run_plan_);
}

}  // namespace elixir
