#include "client/exchange/host_exchange.h"

namespace elixir {

void HostExchange::gather(uint32_t chunk, std::byte* block) {
  const shm::Shape& shape = session_.shape();
  const uint64_t bytes = element_bytes(shape.type);
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    const uint64_t begin = shape.shard_begin(rank), end = shape.shard_end(rank);
    if (begin == end) continue;
    device_.upload(block + begin * bytes, session_.param_shard(chunk, rank), (end - begin) * bytes);
  }
}

void HostExchange::send_grad(uint32_t chunk, uint64_t offset, const std::byte* grad,
                             uint64_t numel) {
  const uint64_t bytes = element_bytes(session_.shape().type);
  device_.download(session_.grad_slot(chunk) + offset * bytes, grad, numel * bytes);
}

}  // namespace elixir
