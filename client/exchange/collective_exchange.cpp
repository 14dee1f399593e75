#include "client/exchange/collective_exchange.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "client/device/scalar_type.h"
#include "client/error.h"
#include "client/ranks/seconds_setting.h"

namespace elixir {
namespace {

constexpr uint64_t kGatherKind = 1, kReduceKind = 2;
constexpr std::chrono::microseconds kPollEvery{50};

std::vector<uint32_t> backwards(const std::vector<uint32_t>& order) {
  return {order.rbegin(), order.rend()};
}

}  // namespace

CollectiveExchange::CollectiveExchange(Session& session, Device& device, Rendezvous& rendezvous,
                                       CollectiveGroup& group, const std::vector<uint32_t>& order,
                                       uint32_t grad_blocks)
    : session_(session),
      device_(device),
      rendezvous_(rendezvous),
      group_(group),
      shape_(session.shape()),
      shard_bytes_(shape_.shard_bytes()),
      timeout_s_(value_or_throw(seconds_setting(0, "ELIXIR_COLLECTIVE_TIMEOUT_S",
                                                CollectiveOptions::kDefaultTimeoutSeconds))),
      reduce_order_(backwards(order)),
      filling_(shape_.all_chunks()),
      filled_(shape_.all_chunks()),
      reduced_rounds_(shape_.all_chunks(), 0),
      uploaded_(device.create_event()),
      gathered_(device.create_event()),
      computed_(device.create_event()),
      reduced_(device.create_event()),
      done_(device.create_event()) {
  for (uint32_t i = 0; i < grad_blocks; ++i) free_blocks_.push_back(make_block());
  if (shape_.n_gpu_chunks == 0) return;
  resident_ = std::make_unique<ResidentStates>(device, shape_, group.rank(), shape_.shard_numel());
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

void CollectiveExchange::gather(uint32_t chunk, uint32_t step, std::byte* block) {
  if (resident(chunk)) {
    device_.copy(Stream::kUpload, own_shard(block), resident_->param(chunk), shard_bytes_);
  } else {
    require(session_.wait_param(chunk, step));
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
  device_.record(gathered_, Stream::kGather);
  device_.wait(Stream::kCompute, gathered_);
}

// ---- gradients down ----

CollectiveExchange::GradBlock CollectiveExchange::make_block() {
  return {device_.allocate(block_bytes(), "a block in which gradients come together",
                           "register the model's layers in the order in which they run, or leave "
                           "more device memory free"),
          device_.create_event()};
}

CollectiveExchange::GradBlock CollectiveExchange::take_block() {
  if (free_blocks_.empty()) {
    if (!said_more_blocks_) {
      log_warn("grad_blocks",
               "why=\"gradients of more chunks than planned are incomplete at a time\" "
               "effect=\"{} bytes more on the device for each\"",
               block_bytes());
    }
    said_more_blocks_ = true;
    return make_block();
  }
  const GradBlock block = free_blocks_.back();
  free_blocks_.pop_back();
  device_.wait(Stream::kCompute, block.free);
  return block;
}

GradTarget CollectiveExchange::begin_grads(uint32_t chunk, uint32_t step) {
  // elixird reads the slot for step-1 until it has updated the chunk.
  if (!resident(chunk)) require(session_.wait_param(chunk, step - 1));
  filling_[chunk] = take_block();
  // What lies between parameters must count as a zero gradient.
  device_.zero(Stream::kCompute, filling_[chunk]->memory, block_bytes());
  return {filling_[chunk]->memory, true, false};
}

void CollectiveExchange::end_grads(uint32_t chunk, uint32_t) {
  filled_[chunk].push_back(*filling_[chunk]);
  filling_[chunk].reset();
  reduce_in_order();
}

void CollectiveExchange::reduce_in_order() {
  for (;;) {
    const uint32_t chunk = reduce_order_[next_to_reduce_];
    if (filled_[chunk].empty()) return;
    reduce(chunk, filled_[chunk].front());
    filled_[chunk].pop_front();
    next_to_reduce_ = (next_to_reduce_ + 1) % reduce_order_.size();
  }
}

void CollectiveExchange::reduce(uint32_t chunk, const GradBlock& block) {
  device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kReduce, computed_);
  note(kReduceKind, chunk);
  {
    const c10::OptionalStreamGuard guard = device_.enter(Stream::kReduce);
    group_.reduce_scatter(block.memory, shape_.shard_numel(), shape_.type)->wait();
  }
  const std::byte* const shard = own_shard(block.memory);
  if (reduced_rounds_[chunk]++ == 0) {
    take_shard(chunk, shard);
  } else {
    add_shard(chunk, shard);
  }
  device_.record(block.free, resident(chunk) ? Stream::kReduce : Stream::kDownload);
  free_blocks_.push_back(block);
}

void CollectiveExchange::take_shard(uint32_t chunk, const std::byte* shard) {
  if (resident(chunk)) {
    return device_.copy(Stream::kReduce, resident_->grads(chunk), shard, shard_bytes_);
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
  for (std::optional<GradBlock>& block : filling_) {
    if (block) free_blocks_.push_back(*block);
    block.reset();
  }
  for (std::deque<GradBlock>& blocks : filled_) {
    for (const GradBlock& block : blocks) free_blocks_.push_back(block);
    blocks.clear();
  }
  std::fill(reduced_rounds_.begin(), reduced_rounds_.end(), 0);
  next_to_reduce_ = 0;
}

void CollectiveExchange::complete_grads(uint32_t step) {
  // Rounds that not all chunks have had.
  for (const uint32_t chunk : reduce_order_) {
    for (; !filled_[chunk].empty(); filled_[chunk].pop_front()) {
      reduce(chunk, filled_[chunk].front());
    }
  }
  // Uploads too: once all ranks have posted, the slots they read are written.
  wait_for(Stream::kUpload);
  wait_for(Stream::kReduce);
  wait_for(Stream::kDownload);
  group_.check();
  // Nobody posts a step that another rank cannot.
  group_.agree(step, history_, 0);
  for (uint32_t chunk = 0; chunk < shape_.n_chunks; ++chunk) session_.publish_grad(chunk, step);
}

void CollectiveExchange::update_resident(uint32_t, const optim::AdamStep& constants) {
  if (!resident_) return;
  device_.record(reduced_, Stream::kReduce);
  device_.wait(Stream::kCompute, reduced_);
  for (uint32_t chunk = shape_.n_chunks; chunk < shape_.all_chunks(); ++chunk) {
    const std::byte* const grads[] = {resident_->grads(chunk)};
    resident_->update(chunk, grads, constants);
  }
}

// ---- before step 1, and after the last ----

void CollectiveExchange::load_chunk(uint32_t chunk, float* values) {
  std::vector<float> mine(shape_.shard_numel());
  group_.scatter({values, shape_.gathered_numel()}, mine);
  if (resident(chunk)) return resident_->load(chunk, mine.data());
  require(session_.load_chunk(chunk, mine.data(), chunk + 1 == shape_.n_chunks));
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
  require(session_.wait_finished(step));
  wait_for(Stream::kCompute);
  group_.check();
}

}  // namespace elixir
