#include "client/exchange/collective_exchange.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "client/ranks/seconds_setting.h"
#include "client/tensors/scalar_type.h"
#include "optim_cpu/gradients.h"

namespace elixir {
namespace {

constexpr uint64_t kGatherKind = 1, kReduceKind = 2;
constexpr std::chrono::microseconds kPollEvery{50};

std::vector<uint32_t> backwards(const std::vector<uint32_t>& order) {
  return {order.rbegin(), order.rend()};
}

}  // namespace

CollectiveExchange::CollectiveExchange(Session& session, Device& device, Rendezvous& rendezvous,
                                       CollectiveGroup& group, const shm::StepRules& rules,
                                       const std::vector<shm::ParameterPlace>& places,
                                       const std::vector<uint32_t>& order, uint32_t grad_blocks)
    : session_(session),
      device_(device),
      rendezvous_(rendezvous),
      group_(group),
      shape_(session.shape()),
      rules_(rules),
      shard_bytes_(shape_.shard_bytes()),
      timeout_s_(value_or_throw(seconds_setting(0, "ELIXIR_COLLECTIVE_TIMEOUT_S",
                                                CollectiveOptions::kDefaultTimeoutSeconds))),
      reduce_order_(backwards(order)),
      grad_blocks_(device, block_bytes(), grad_blocks),
      rounds_(shape_.all_chunks()),
      reduced_rounds_(shape_.all_chunks(), 0),
      uploaded_(device.create_event()),
      computed_(device.create_event()),
      reduced_(device.create_event()),
      updated_(device.create_event()),
      done_(device.create_event()),
      publisher_(device, session) {
  if (rules.norms) {
    const size_t bytes = shape_.all_chunks() * sizeof(NormSum);
    norms_ = device.allocate(bytes, "gradients' norms", "use longer chunks (--chunk-numel)");
    own_norms_ = reinterpret_cast<NormSum*>(device.allocate_host(bytes, "gradients' norms"));
  }
  if (shape_.n_gpu_chunks == 0) return;
  resident_ =
      std::make_unique<ResidentStates>(device, shape_, group.rank(), shape_.shard_numel(), places);
}

size_t CollectiveExchange::block_bytes() const { return shape_.ranks * shard_bytes_; }

std::byte* CollectiveExchange::own_shard(std::byte* block) const {
  return block + group_.rank() * shard_bytes_;
}

// Not Device::synchronize: a stream may hold a collective that another rank never joins.
void CollectiveExchange::wait_for(Stream stream) {
  device_.record(done_, stream);
  const int64_t start_ns = monotonic_ns();
  while (!device_.done(done_)) {
    group_.check();
    if (seconds_since(start_ns) > timeout_s_) {
      require(
          error(Code::kTimedOut,
                "waited {:.0f} s for the device to finish a collective: a rank has not joined it, "
                "or ranks made different ones (ELIXIR_COLLECTIVE_TIMEOUT_S allows more)",
                timeout_s_));
    }
    std::this_thread::sleep_for(kPollEvery);
  }
}

// What elixird says of a rank of this node concerns those of the others.
void CollectiveExchange::require(const Status& status) {
  if (status.ok()) return;
  rendezvous_.watch().report(status);
  throw Error(status);
}

void CollectiveExchange::note(uint64_t kind, uint32_t chunk) {
  // A step of FNV-1a over 64-bit words: order counts.
  history_ = (history_ ^ (kind << 32 | chunk)) * 0x100000001b3;
}

// ---- parameters up ----

void CollectiveExchange::gather(uint32_t chunk, uint32_t step, std::byte* block,
                                DeviceEvent filled) {
  if (resident(chunk)) {
    device_.copy(Stream::kUpload, own_shard(block), resident_->param(chunk), shard_bytes_);
  } else {
    if (!shape_.frozen(chunk)) require(session_.wait_param(chunk, step));
    device_.upload(Stream::kUpload, own_shard(block),
                   session_.param_shard(chunk, session_.local_rank()), shard_bytes_);
  }
  device_.record(uploaded_, Stream::kUpload);
  device_.wait(Stream::kGather, uploaded_);
  note(kGatherKind, chunk);
  {
    const c10::OptionalStreamGuard guard = device_.enter(Stream::kGather);
    group_.all_gather(block, shape_.shard_numel(), shape_.type)->wait();
  }
  d2d_bytes_ += (shape_.ranks - 1) * shard_bytes_;
  device_.record(filled, Stream::kGather);
}

// ---- gradients down ----

GradStart CollectiveExchange::begin_grads(uint32_t chunk, uint32_t step) {
  // elixird reads the slot for step-1 until it has updated the chunk. (That of the round before is
  // awaited where the slot is written.)
  if (!resident(chunk)) require(session_.wait_param(chunk, step - 1));
  rounds_[chunk].emplace_back();
  return {.keeps_rounds = false, .zeroed = true};
}

GradTarget CollectiveExchange::grad_target(uint32_t chunk) {
  return {grad_blocks_.hold(rounds_[chunk].back().grads), true};
}

void CollectiveExchange::end_grads(uint32_t chunk, uint32_t step, uint32_t round) {
  Round& ended = rounds_[chunk].back();
  ended.filled = true;
  ended.step = step;
  ended.round = round;
  reduce_in_order();
}

bool CollectiveExchange::next_is_filled(uint32_t chunk) const {
  return !rounds_[chunk].empty() && rounds_[chunk].front().filled;
}

void CollectiveExchange::reduce_in_order() {
  for (;;) {
    const uint32_t chunk = reduce_order_[next_to_reduce_];
    if (!next_is_filled(chunk)) return;
    reduce_next(chunk);
    next_to_reduce_ = (next_to_reduce_ + 1) % reduce_order_.size();
  }
}

void CollectiveExchange::reduce_next(uint32_t chunk) {
  Round& next = rounds_[chunk].front();
  std::byte* const block = grad_blocks_.hold(next.grads);
  device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kReduce, computed_);
  note(kReduceKind, chunk);
  {
    const c10::OptionalStreamGuard guard = device_.enter(Stream::kReduce);
    group_.reduce_scatter(block, shape_.shard_numel(), shape_.type)->wait();
  }
  d2d_bytes_ += (shape_.ranks - 1) * shard_bytes_;
  const std::byte* const shard = own_shard(block);
  const bool first = reduced_rounds_[chunk]++ == 0;
  if (first && rules_.norms && !shape_.accumulates) {
    device_.squared_norm(Stream::kReduce, shape_.type, shard, shape_.shard_numel(),
                         norms_ + chunk * sizeof(NormSum));
  }
  if (first || shape_.accumulates) {
    take_shard(chunk, shard, next.round);
  } else {
    add_shard(chunk, shard);
  }
  if (!resident(chunk)) {
    publisher_.publish(chunk, next.step, next.round, rules_.immediate);
  }
  grad_blocks_.end(next.grads, resident(chunk) ? Stream::kReduce : Stream::kDownload);
  rounds_[chunk].pop_front();
}

void CollectiveExchange::take_shard(uint32_t chunk, const std::byte* shard, uint32_t round) {
  if (resident(chunk)) {
    device_.copy(Stream::kReduce, resident_->grads(chunk), shard, shard_bytes_);
    if (shape_.accumulates) resident_->add_round(chunk, round == 1, Stream::kReduce);
    return;
  }
  if (shape_.accumulates) {
    publisher_.await(chunk);
    require(session_.wait_taken(chunk));
  }
  device_.record(reduced_, Stream::kReduce);
  device_.wait(Stream::kDownload, reduced_);
  device_.download(Stream::kDownload, session_.grad_slot(chunk), shard, shard_bytes_);
}

// Rare, so it may wait: several backward passes before a step.
void CollectiveExchange::add_shard(uint32_t chunk, const std::byte* shard) {
  const auto numel = static_cast<int64_t>(shape_.shard_numel());
  const auto options = at::TensorOptions().dtype(scalar_type(shape_.type));
  const at::Tensor addend =
      at::from_blob(const_cast<std::byte*>(shard), {numel}, options.device(device_.torch_device()));
  const c10::OptionalStreamGuard guard = device_.enter(Stream::kReduce);
  if (resident(chunk)) {
    at::from_blob(resident_->grads(chunk), {numel}, addend.options()).add_(addend);
    return;
  }
  wait_for(Stream::kDownload);  // the rounds before
  at::from_blob(session_.grad_slot(chunk), {numel}, options.device(at::kCPU)).add_(addend.cpu());
  device_.record(reduced_, Stream::kReduce);
  device_.wait(Stream::kDownload, reduced_);
}

void CollectiveExchange::discard_grads() {
  for (std::deque<Round>& rounds : rounds_) {
    for (Round& round : rounds) grad_blocks_.drop(round.grads);
    rounds.clear();
  }
  std::fill(reduced_rounds_.begin(), reduced_rounds_.end(), 0);
  next_to_reduce_ = 0;
}

void CollectiveExchange::post(const shm::StepRecord& record, const double* late_metric) {
  // Rounds that not all chunks have had.
  for (const uint32_t chunk : reduce_order_) {
    while (next_is_filled(chunk)) reduce_next(chunk);
  }
  if (norms_ != nullptr) {
    device_.record(reduced_, Stream::kReduce);
    device_.wait(Stream::kDownload, reduced_);
    device_.download(Stream::kDownload, reinterpret_cast<std::byte*>(own_norms_), norms_,
                     shape_.all_chunks() * sizeof(NormSum));
  }
  // Uploads too: once all ranks have posted, the slots they read are written.
  wait_for(Stream::kUpload);
  wait_for(Stream::kReduce);
  wait_for(Stream::kDownload);
  publisher_.drain();
  group_.check();
  // Nobody posts a step that another rank cannot.
  group_.agree(record.step, history_, 0);
  shm::StepRecord complete = record;
  if (late_metric != nullptr) complete.metric = *late_metric;
  if (rules_.norms) complete.norm = norms_of_all();
  publisher_.post(complete);
  publisher_.drain();
  discard_grads();
}

// The squares of all gradients of all ranks: on every rank the same.
NormSum CollectiveExchange::norms_of_all() {
  NormSum mine{};
  for (uint32_t chunk = 0; chunk < shape_.all_chunks(); ++chunk) {
    // The device has seen the first round alone.
    if (!shape_.accumulates && reduced_rounds_[chunk] == 1) {
      add(mine, own_norms_[chunk]);
    } else {
      add_host_norm(chunk, mine);
    }
  }
  NormSum sum{};
  for (const NormSum& part : group_.all_gather_values(mine)) add(sum, part);
  return sum;
}

// Of a chunk whose rounds were summed after they left the device, or on it in another place.
void CollectiveExchange::add_host_norm(uint32_t chunk, NormSum& sum) {
  optim::GradientSpan span;
  const void* grads[1] = {nullptr};
  span.grads = grads;
  span.numel = shape_.shard_numel();
  if (resident(chunk)) {
    resident_->squared_norm(Stream::kReduce, chunk, norms_ + chunk * sizeof(NormSum));
    device_.record(reduced_, Stream::kReduce);
    device_.wait(Stream::kDownload, reduced_);
    device_.download(Stream::kDownload, reinterpret_cast<std::byte*>(&own_norms_[chunk]),
                     norms_ + chunk * sizeof(NormSum), sizeof(NormSum));
    wait_for(Stream::kDownload);
    return add(sum, own_norms_[chunk]);
  }
  if (shape_.accumulates) {
    require(session_.wait_taken(chunk));
    span.type = ComputeType::kFp32;
    grads[0] = session_.grad_sum(chunk);
  } else {
    span.type = shape_.type;
    grads[0] = session_.grad_slot(chunk);
  }
  optim::take_gradients(optim::best_isa(), span, &sum);
}

void CollectiveExchange::update_resident(uint32_t, const GroupSteps& constants) {
  if (!resident_) return;
  device_.record(reduced_, Stream::kReduce);
  device_.wait(Stream::kCompute, reduced_);
  for (uint32_t chunk = shape_.n_chunks; chunk < shape_.all_chunks(); ++chunk) {
    resident_->update(chunk, {}, constants);
  }
  // Gathers read the new parameters.
  device_.record(updated_, Stream::kCompute);
  device_.wait(Stream::kUpload, updated_);
}

// ---- before step 1, and after the last ----

void CollectiveExchange::hand_out(uint32_t chunk, float* values) {
  // Rank 0's shard is the first, so that every rank has its own at the start.
  group_.scatter({values, shape_.gathered_numel()}, {values, shape_.shard_numel()});
  if (resident(chunk)) resident_->load(chunk, values);
}

void CollectiveExchange::load(uint32_t chunk, const float* values) {
  if (!resident(chunk)) require(session_.load_chunk(chunk, values));
}

void CollectiveExchange::await_loaded() {
  require(session_.await_loaded());
  group_.barrier();
}

void CollectiveExchange::read_masters(uint32_t chunk, float* values) {
  std::vector<float> mine(shape_.shard_numel());
  if (resident(chunk)) {
    resident_->read_masters(chunk, mine.data());
  } else {
    session_.read_masters(chunk, session_.local_rank(), mine.data());
  }
  group_.all_gather(mine, {values, shape_.gathered_numel()});
}

// ---- a step ----

double CollectiveExchange::mean_metric(uint32_t, double mine) { return group_.mean(mine); }

void CollectiveExchange::synchronize(uint32_t step) {
  publisher_.drain();
  require(session_.wait_finished(step));
  wait_for(Stream::kCompute);
  group_.check();
}

}  // namespace elixir
