#pragma once

#include <cstddef>
#include <cstdint>

#include "client/exchange/exchange.h"
#include "client/session/session.h"

namespace elixir {

// Brings parameters up: waits for nothing but the chunk itself.
class ParamUpload {
 public:
  ParamUpload(Session& session, Exchange& exchange) : session_(session), exchange_(exchange) {}

  // Fills the block with the chunk's parameters as they are after `step`. Throws elixir::Error when
  // elixird or a peer is lost.
  void fill(uint32_t chunk, uint32_t step, std::byte* block);

 private:
  Session& session_;
  Exchange& exchange_;
};

}  // namespace elixir
