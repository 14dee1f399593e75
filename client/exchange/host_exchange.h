#pragma once

#include "client/device/device.h"
#include "client/exchange/exchange.h"
#include "client/session/session.h"

namespace elixir {

// The parameter server, for the ranks of one node: a chunk is gathered by copying the shards
// straight from every rank's param slots, and the whole gradient goes down into this rank's grad
// slot; elixird's workers sum the ranks' gradients inside the update, in rank order. No collective,
// no rendezvous but elixird, the same bits for every plan.
class HostExchange final : public Exchange {
 public:
  HostExchange(Session& session, Device& device) : session_(session), device_(device) {}

  void gather(uint32_t chunk, std::byte* block) override;
  void send_grad(uint32_t chunk, uint64_t offset, const std::byte* grad, uint64_t numel) override;

 private:
  Session& session_;
  Device& device_;
};

}  // namespace elixir
