// What goes over the collective exchange before step 1 and after the last: values of whole chunks.

#include <algorithm>
#include <vector>

#include "client/exchange/collective_exchange.h"

namespace elixir {

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

}  // namespace elixir
