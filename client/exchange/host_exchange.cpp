// Data path, hop 6 of 6 (gather): updated parameters go from the param slots into an rCache block.

#include "client/exchange/host_exchange.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/throw_error.h"

namespace elixir {

HostExchange::HostExchange(Session& session, Device& device, const shm::StepRules& rules,
                           const std::vector<shm::ParameterPlace>& places, uint32_t grad_blocks)
    : session_(session),
      device_(device),
      shape_(session.shape()),
      rules_(rules),
      in_blocks_(grad_blocks > 0),
      grad_blocks_(device, shape_.chunk_bytes(), grad_blocks),
      pending_(shape_.n_chunks),
      squared_(device.create_event()),
      norms_down_(device.create_event()),
      done_(device.create_event()),
      publisher_(device, session, rules) {
  ELIXIR_CHECK(shape_.exchange == shm::Exchange::kHost && shape_.ranks <= optim::kMaxGrads,
               "{} exchange of {} ranks", shm::exchange_name(shape_.exchange), shape_.ranks);
  ELIXIR_CHECK(in_blocks_ || shape_.n_chunks == 0 || device.copies_at_once(),
               "no blocks for gradients");
  for (uint32_t chunk = 0; chunk < shape_.n_chunks; ++chunk) {
    pending_[chunk].aside = session.grad_slot(chunk);
  }
  if (shape_.n_gpu_chunks == 0) return;
  ELIXIR_CHECK(shape_.ranks == 1, "{} ranks with states on the device", shape_.ranks);
  device_states_ = std::make_unique<DeviceStates>(device, shape_, 0, places, rules.sums_all());
  if (rules.norms == 0) return;
  const size_t bytes = shape_.n_gpu_chunks * sizeof(NormSum);
  norms_ = device.allocate(bytes, "gradients' norms",
                           "keep all states in host memory (--gpu-state-share 0)");
  own_norms_ = reinterpret_cast<NormSum*>(device.allocate_host(bytes, "gradients' norms"));
}

// ---- parameters up ----

std::byte* HostExchange::own_block(uint32_t chunk) {
  return shape_.on_gpu(chunk) ? device_states_->param(chunk) : nullptr;
}

bool HostExchange::ready(uint32_t chunk, uint32_t step) {
  return shape_.frozen(chunk) || session_.param_step(chunk) >= step;
}

void HostExchange::gather(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
                          DeviceEvent filled) {
  ELIXIR_CHECK(chunk < shape_.total_chunks() && !shape_.on_gpu(chunk) && block != nullptr,
               "chunk {} of {} comes nowhere", chunk, shape_.total_chunks());
  device_.wait(Stream::kUpload, unused);
  if (!shape_.frozen(chunk)) throw_if_error(session_.wait_param(chunk, step));
  const uint64_t element = element_bytes(shape_.type);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const uint64_t begin = shape_.shard_begin(rank), end = shape_.shard_end(rank);
    if (begin == end) continue;
    device_.upload(Stream::kUpload, block + begin * element, session_.param_shard(chunk, rank),
                   (end - begin) * element);
  }
  device_.record(filled, Stream::kUpload);
}

// ---- gradients down ----

bool HostExchange::begin_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) {
  if (shape_.on_gpu(chunk)) {
    device_states_->begin_micro_step(chunk, micro_step, Stream::kCompute);
    return false;
  }
  // elixird reads the slot for step-1 until it has updated the chunk.
  throw_if_error(session_.wait_param(chunk, step - 1));
  publisher_.free_slot(chunk, step, micro_step);
  pending_[chunk].holds = false;
  return in_blocks_;
}

GradTarget HostExchange::grad_target(uint32_t chunk) {
  if (shape_.on_gpu(chunk)) return {device_states_->grads(chunk), true};
  if (!in_blocks_) return {pending_[chunk].aside, false};
  return {grad_blocks_.hold(pending_[chunk]), true};
}

void HostExchange::end_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) {
  if (shape_.on_gpu(chunk))
    return device_states_->end_micro_step(chunk, micro_step, Stream::kCompute);
  if (in_blocks_) grad_blocks_.put_aside(pending_[chunk]);
  publisher_.publish(chunk, step, micro_step, rules_.immediate != 0);
}

void HostExchange::discard_grads() {
  drop_pending();
  publisher_.discard();
}

void HostExchange::drop_pending() {
  for (PendingGrads& pending : pending_) grad_blocks_.drop(pending);
}

void HostExchange::post(const shm::StepRecord& record, const double* late_metric) {
  drop_pending();  // those of the next step count from zero
  if (rules_.norms != 0 && device_states_) return post_with_own_norms(record, late_metric);
  publisher_.post(record, [late_metric](shm::StepRecord& late) {
    if (late_metric != nullptr) late.metric = *late_metric;
  });
}

void HostExchange::post_with_own_norms(const shm::StepRecord& record, const double* late_metric) {
  // The norms of the step before are on the host already: elixird has its record. No event said so.
  device_.wait(Stream::kCompute, norms_down_);
  for (uint32_t i = 0; i < shape_.n_gpu_chunks; ++i) {
    device_states_->squared_norm(Stream::kCompute, shape_.n_chunks + i,
                                 norms_ + i * sizeof(NormSum));
  }
  device_.record(squared_, Stream::kCompute);
  device_.wait(Stream::kDownload, squared_);
  device_.download(Stream::kDownload, reinterpret_cast<std::byte*>(own_norms_), norms_,
                   shape_.n_gpu_chunks * sizeof(NormSum));
  device_.record(norms_down_, Stream::kDownload);
  publisher_.post(record, [this, late_metric](shm::StepRecord& complete) {
    if (late_metric != nullptr) complete.metric = *late_metric;
    for (uint32_t i = 0; i < shape_.n_gpu_chunks; ++i) add(complete.norm, own_norms_[i]);
  });
}

// ---- chunks placed on the GPU ----

void HostExchange::update_on_device(const optim::ParameterSteps& updates) {
  if (!device_states_) return;
  for (uint32_t chunk = shape_.n_chunks; chunk < shape_.all_chunks(); ++chunk) {
    device_states_->update(chunk, updates);
  }
}

// ---- before step 1, and after the last ----

void HostExchange::hand_out(uint32_t chunk, float* values) {
  if (shape_.on_gpu(chunk))
    device_states_->load(chunk, values);  // of others elixird takes rank 0's
}

void HostExchange::load(uint32_t chunk, const float* values) {
  if (shape_.on_gpu(chunk) || session_.local_rank() != 0) return;
  throw_if_error(session_.load_chunk(chunk, values));
}

void HostExchange::await_loaded(CollectiveKind call) {
  throw_if_error(session_.await_loaded(CollectiveSignature{call}.name()));
}

void HostExchange::broadcast(std::span<std::byte> bytes) {
  if (shape_.ranks > 1) throw_if_error(session_.broadcast(bytes));
}

void HostExchange::read_masters(uint32_t chunk, float* values) {
  if (shape_.on_gpu(chunk)) return device_states_->read_masters(chunk, values);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    session_.read_masters(chunk, rank, values + shape_.shard_begin(rank));
  }
}

void HostExchange::read_moment(uint32_t chunk, uint32_t moment, float* values) {
  if (shape_.on_gpu(chunk)) return device_states_->read_moment(chunk, moment, values);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    session_.read_moment(chunk, rank, moment, values + shape_.shard_begin(rank));
  }
}

// ---- a step ----

double HostExchange::mean_metric(uint32_t step, double) {
  return value_or_throw(session_.wait_committed(step)).metric_mean;
}

void HostExchange::synchronize(uint32_t step) {
  publisher_.drain();
  throw_if_error(session_.wait_finished(step));
  device_.record(done_, Stream::kCompute);
  device_.synchronize(done_);
}

}  // namespace elixir
