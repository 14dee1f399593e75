#include "client/exchange/collective_exchange.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/throw_error.h"
#include "client/exchange/grad_groups.h"
#include "client/ranks/seconds_setting.h"
#include "optim_cpu/gradients.h"

namespace elixir {
namespace {

constexpr uint32_t kNeverGathered = UINT32_MAX;
constexpr uint64_t kGatherKind = 1, kReduceKind = 2, kMetricKind = 3;

std::vector<uint32_t> backwards(const std::vector<uint32_t>& order) {
  return {order.rbegin(), order.rend()};
}

std::vector<std::string> trained_names(const std::vector<shm::ParameterPlace>& places,
                                       uint32_t n_parameters) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < n_parameters && i < places.size(); ++i) names.push_back(places[i].name);
  return names;
}

uint64_t hyperparameters_xxh64(const shm::StepRecord& record) {
  const std::span<const std::byte> bytes = shm::hyperparameters_of(record);
  return XXH64(bytes.data(), bytes.size(), 0);
}

}  // namespace

CollectiveExchange::CollectiveExchange(Session& session, Device& device, CollectiveGroup& group,
                                       const shm::StepRules& rules,
                                       const std::vector<shm::ParameterPlace>& places,
                                       const std::vector<uint32_t>& order, uint32_t grad_blocks)
    : session_(session),
      device_(device),
      group_(group),
      shape_(session.shape()),
      rules_(rules),
      shard_bytes_(shape_.shard_bytes()),
      timeout_s_(value_or_throw(seconds_setting(0, "ELIXIR_COLLECTIVE_TIMEOUT_S",
                                                CollectiveGroup::kDefaultTimeoutSeconds))),
      reduce_order_(backwards(order)),
      names_(trained_names(places, shape_.n_parameters)),
      grad_blocks_(device, block_bytes(), grad_blocks),
      micro_steps_(shape_.all_chunks()),
      reduced_(shape_.all_chunks(), 0),
      gather_follows_(shape_.all_chunks(), 0),
      gathered_at_(shape_.total_chunks(), kNeverGathered),
      uploaded_(device.create_event()),
      computed_(device.create_event()),
      shard_reduced_(device.create_event()),
      updated_(device.create_event()),
      done_(device.create_event()),
      publisher_(device, session, rules) {
  ELIXIR_CHECK(shape_.exchange == shm::Exchange::kCollective &&
                   reduce_order_.empty() == (shape_.all_chunks() == 0),
               "{} exchange of {} chunks", shm::exchange_name(shape_.exchange),
               reduce_order_.size());
  if (rules.norms) {
    const size_t bytes = shape_.all_chunks() * sizeof(NormSum);
    norms_ = device.allocate(bytes, "gradients' norms", "use longer chunks (--chunk-numel)");
    own_norms_ = reinterpret_cast<NormSum*>(device.allocate_host(bytes, "gradients' norms"));
  }
  if (shape_.n_gpu_chunks == 0) return;
  device_states_ =
      std::make_unique<DeviceStates>(device, shape_, group.rank(), places, rules.sums_all());
}

size_t CollectiveExchange::block_bytes() const { return shape_.ranks * shard_bytes_; }

std::byte* CollectiveExchange::own_shard(std::byte* block) const {
  return block + group_.rank() * shard_bytes_;
}

void CollectiveExchange::wait_for(Stream stream) {
  device_.record(done_, stream);
  require(group_.await(device_, done_, timeout_s_));
}

// What elixird says of a rank of this node concerns those of the others.
void CollectiveExchange::require(const Status& status) {
  if (status.ok()) return;
  group_.report(status);
  throw Error(status);
}

void CollectiveExchange::note(uint64_t kind, uint32_t chunk) {
  // A step of FNV-1a over 64-bit words: order counts.
  history_ = (history_ ^ (kind << 32 | chunk)) * 0x100000001b3;
}

// ---- parameters up ----

void CollectiveExchange::gather(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
                                DeviceEvent filled) {
  ELIXIR_CHECK(chunk < shape_.total_chunks(), "chunk {} of {}", chunk, shape_.total_chunks());
  const bool again = std::exchange(gathered_at_[chunk], step) == step;
  if (last_begun_) gather_follows_[*last_begun_] = again ? 1 : 0;
  last_begun_.reset();
  if (!again) reduce_held_back();  // the first one may wait for the chunk's update
  device_.wait(Stream::kUpload, unused);
  device_.wait(Stream::kGather, unused);
  if (shape_.on_gpu(chunk)) {
    device_.copy(Stream::kUpload, own_shard(block), device_states_->param(chunk), shard_bytes_);
  } else {
    if (!shape_.frozen(chunk)) require(session_.wait_param(chunk, step));
    device_.upload(Stream::kUpload, own_shard(block),
                   session_.param_shard(chunk, session_.local_rank()), shard_bytes_);
  }
  device_.record(uploaded_, Stream::kUpload);
  device_.wait(Stream::kGather, uploaded_);
  note(kGatherKind, chunk);
  {
    const auto entered = group_.enter(device_.begin_collective(Stream::kGather));
    group_.all_gather(block, shape_.shard_numel(), shape_.type, chunk)->wait();
  }
  d2d_bytes_ += (shape_.ranks - 1) * shard_bytes_;
  device_.record(filled, Stream::kGather);
  reduce_held_back();
}

// ---- gradients down ----

bool CollectiveExchange::begin_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) {
  ELIXIR_CHECK(chunk < micro_steps_.size() && step > 0 && micro_step > 0,
               "micro-step {} of step {} of chunk {}: both count from 1", micro_step, step, chunk);
  // elixird reads the slot for step-1 until it has updated the chunk. (That of the micro-step
  // before is awaited where the slot is written.)
  if (!shape_.on_gpu(chunk)) require(session_.wait_param(chunk, step - 1));
  micro_steps_[chunk].push_back({.grads = {}, .step = step, .number = micro_step});
  return true;
}

GradTarget CollectiveExchange::grad_target(uint32_t chunk) {
  ELIXIR_CHECK(!micro_steps_[chunk].empty() && !micro_steps_[chunk].back().filled,
               "no micro-step of chunk {} has begun", chunk);
  return {grad_blocks_.hold(micro_steps_[chunk].back().grads), true};
}

void CollectiveExchange::end_grads(uint32_t chunk, uint32_t, uint32_t micro_step) {
  ELIXIR_CHECK(!micro_steps_[chunk].empty() && micro_steps_[chunk].back().number == micro_step,
               "micro-step {} of chunk {} ends and has not begun", micro_step, chunk);
  micro_steps_[chunk].back().filled = true;
  reduce_in_order();
}

bool CollectiveExchange::next_is_filled(uint32_t chunk) const {
  return !micro_steps_[chunk].empty() && micro_steps_[chunk].front().filled;
}

void CollectiveExchange::reduce_in_order() {
  for (;;) {
    const uint32_t chunk = reduce_order_[next_to_reduce_];
    if (!next_is_filled(chunk)) return;
    if (next_to_reduce_ == 0 && cycles_ == agreed_cycles_) any_goes_on(true);
    next_to_reduce_ = (next_to_reduce_ + 1) % reduce_order_.size();
    if (next_to_reduce_ == 0) ++cycles_;
    begin_reduction(chunk);
  }
}

// At once, or behind the gather that follows. Backward's last one is followed by none of its pass.
void CollectiveExchange::begin_reduction(uint32_t chunk) {
  reduce_held_back();
  if (last_begun_) gather_follows_[*last_begun_] = 0;
  last_begun_ = chunk;
  grad_blocks_.hold(micro_steps_[chunk].front().grads);
  device_.record(computed_, Stream::kCompute);
  if (gather_follows_[chunk] == 0 || next_to_reduce_ == 0) return reduce(chunk);
  held_back_ = chunk;
}

void CollectiveExchange::reduce_held_back() {
  if (held_back_) reduce(*std::exchange(held_back_, std::nullopt));
}

void CollectiveExchange::reduce(uint32_t chunk) {
  MicroStep& next = micro_steps_[chunk].front();
  const bool was_aside = next.grads.block == nullptr;
  std::byte* const block = grad_blocks_.hold(next.grads);
  if (was_aside) device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kReduce, computed_);
  note(kReduceKind, chunk);
  {
    const auto entered = group_.enter(device_.begin_collective(Stream::kReduce));
    group_.reduce_scatter(block, shape_.shard_numel(), shape_.type, chunk)->wait();
  }
  d2d_bytes_ += (shape_.ranks - 1) * shard_bytes_;
  const std::byte* const shard = own_shard(block);
  reduced_[chunk] = next.number;
  if (rules_.norms != 0 && next.number == 1) {
    device_.squared_norm(Stream::kReduce, shape_.type, shard, shape_.shard_numel(),
                         norms_ + chunk * sizeof(NormSum));
  }
  take_shard(chunk, next, shard);
  if (!shape_.on_gpu(chunk)) {
    publisher_.publish(chunk, next.step, next.number, rules_.immediate != 0);
  }
  grad_blocks_.end(next.grads, shape_.on_gpu(chunk) ? Stream::kReduce : Stream::kDownload);
  micro_steps_[chunk].pop_front();
}

void CollectiveExchange::take_shard(uint32_t chunk, const MicroStep& of, const std::byte* shard) {
  if (shape_.on_gpu(chunk)) {
    device_states_->begin_micro_step(chunk, of.number, Stream::kReduce);
    device_.copy(Stream::kReduce, device_states_->grads(chunk), shard, shard_bytes_);
    return device_states_->end_micro_step(chunk, of.number, Stream::kReduce);
  }
  publisher_.free_slot(chunk, of.step, of.number);
  device_.record(shard_reduced_, Stream::kReduce);
  device_.wait(Stream::kDownload, shard_reduced_);
  device_.download(Stream::kDownload, session_.grad_slot(chunk), shard, shard_bytes_);
}

// Whether any rank has another micro-step: a reduction of every chunk, in which all have a part.
bool CollectiveExchange::any_goes_on(bool mine) {
  const std::vector<uint8_t> of_ranks = group_.all_gather_values<uint8_t>(mine ? 1 : 0);
  const bool any = std::find(of_ranks.begin(), of_ranks.end(), 1) != of_ranks.end();
  agreed_cycles_ += any ? 1 : 0;
  return any;
}

bool CollectiveExchange::others_go_on() { return any_goes_on(false); }

void CollectiveExchange::discard_grads() {
  reduce_held_back();
  forget_micro_steps();
  publisher_.discard();
}

void CollectiveExchange::forget_micro_steps() {
  for (std::deque<MicroStep>& waiting : micro_steps_) {
    for (MicroStep& micro_step : waiting) grad_blocks_.drop(micro_step.grads);
    waiting.clear();
  }
  std::fill(reduced_.begin(), reduced_.end(), 0);
  next_to_reduce_ = 0;
  cycles_ = 0;
  agreed_cycles_ = 1;
}

void CollectiveExchange::post(const shm::StepRecord& record, const double* late_metric) {
  ELIXIR_CHECK(next_to_reduce_ == 0 && cycles_ == agreed_cycles_ && !held_back_,
               "step {} is posted with {} of {} reductions of every chunk", record.step, cycles_,
               agreed_cycles_);
  if (norms_ != nullptr) {
    device_.record(shard_reduced_, Stream::kReduce);
    device_.wait(Stream::kDownload, shard_reduced_);
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
  const auto groups = session_.grad_groups(record.step);
  const uint32_t mine = lacks_gradients(groups) | static_cast<uint32_t>(record.asks) << 1;
  const uint32_t all = group_.agree(record.step, history_, mine, hyperparameters_xxh64(record));
  posted_ = record.step;
  if ((all & 1) != 0) share_grad_groups(groups, names_, group_);
  shm::StepRecord complete = record;
  complete.asks = all >> 1;  // elixird hears those of its node alone
  if (late_metric != nullptr) complete.metric = *late_metric;
  if (rules_.norms) complete.norm = norms_of_all();
  publisher_.post(complete);
  publisher_.drain();
  forget_micro_steps();
}

// The squares of all gradients of all ranks: on every rank the same.
NormSum CollectiveExchange::norms_of_all() {
  NormSum mine{};
  for (uint32_t chunk = 0; chunk < shape_.all_chunks(); ++chunk) {
    // The device has seen the first micro-step alone.
    if (reduced_[chunk] == 1) {
      add(mine, own_norms_[chunk]);
    } else {
      add_norm_of_sum(chunk, mine);
    }
  }
  NormSum sum{};
  for (const NormSum& part : group_.all_gather_values(mine)) add(sum, part);
  return sum;
}

void CollectiveExchange::add_norm_of_sum(uint32_t chunk, NormSum& sum) {
  if (shape_.on_gpu(chunk)) {
    device_states_->squared_norm(Stream::kReduce, chunk, norms_ + chunk * sizeof(NormSum));
    device_.record(shard_reduced_, Stream::kReduce);
    device_.wait(Stream::kDownload, shard_reduced_);
    device_.download(Stream::kDownload, reinterpret_cast<std::byte*>(&own_norms_[chunk]),
                     norms_ + chunk * sizeof(NormSum), sizeof(NormSum));
    wait_for(Stream::kDownload);
    return add(sum, own_norms_[chunk]);
  }
  require(session_.wait_taken(chunk));
  const void* const grads = session_.grad_sum(chunk);
  optim::GradientSpan span;
  span.type = ComputeType::kFp32;
  span.n_grads = 1;
  span.grads = &grads;
  span.numel = shape_.shard_numel();
  optim::take_gradients(optim::best_isa(), span, &sum);
}

void CollectiveExchange::update_on_device(const optim::ParameterSteps& updates) {
  if (!device_states_) return;
  device_.record(shard_reduced_, Stream::kReduce);
  device_.wait(Stream::kCompute, shard_reduced_);
  for (uint32_t chunk = shape_.n_chunks; chunk < shape_.all_chunks(); ++chunk) {
    device_states_->update(chunk, updates);
  }
  // Gathers read the new parameters.
  device_.record(updated_, Stream::kCompute);
  device_.wait(Stream::kUpload, updated_);
}

// ---- before step 1, and after the last ----

void CollectiveExchange::hand_out(uint32_t chunk, float* values) {
  // Rank 0's shard is the first, so that every rank has its own at the start.
  group_.scatter({values, shape_.gathered_numel()}, {values, shape_.shard_numel()}, chunk);
  if (shape_.on_gpu(chunk)) device_states_->load(chunk, values);
}

void CollectiveExchange::load(uint32_t chunk, const float* values) {
  if (!shape_.on_gpu(chunk)) require(session_.load_chunk(chunk, values));
}

// Before elixird is asked: ranks that make other calls are named here.
void CollectiveExchange::await_loaded(CollectiveKind call) {
  group_.meet(call, posted_, history_);
  require(session_.await_loaded());
  group_.barrier();
}

void CollectiveExchange::broadcast(std::span<std::byte> bytes) { group_.broadcast(bytes); }

void CollectiveExchange::read_masters(uint32_t chunk, float* values) {
  std::vector<float> mine(shape_.shard_numel());
  if (shape_.on_gpu(chunk)) {
    device_states_->read_masters(chunk, mine.data());
  } else {
    session_.read_masters(chunk, session_.local_rank(), mine.data());
  }
  gather_shards(chunk, mine, values);
}

void CollectiveExchange::read_moment(uint32_t chunk, uint32_t moment, float* values) {
  std::vector<float> mine(shape_.shard_numel());
  if (shape_.on_gpu(chunk)) {
    device_states_->read_moment(chunk, moment, mine.data());
  } else {
    session_.read_moment(chunk, session_.local_rank(), moment, mine.data());
  }
  gather_shards(chunk, mine, values);
}

void CollectiveExchange::gather_shards(uint32_t chunk, std::span<const float> mine, float* values) {
  group_.agree(posted_, history_, 0);
  group_.all_gather(mine, {values, shape_.gathered_numel()}, chunk);
}

// ---- a step ----

double CollectiveExchange::mean_metric(uint32_t step, double mine) {
  note(kMetricKind, step);
  group_.agree(posted_, history_, 0);
  return group_.mean(mine);
}

void CollectiveExchange::synchronize(uint32_t step) {
  publisher_.drain();
  require(session_.wait_finished(step));
  wait_for(Stream::kCompute);
  group_.check();
}

}  // namespace elixir
