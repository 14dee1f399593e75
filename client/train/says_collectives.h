#pragma once

#include <atomic>

#include "client/ranks/peer_watch.h"
#include "client/session/says_wait.h"

namespace elixir {

// While it lives, elixird learns for which rank this one waits in a collective.
class SaysCollectives {
 public:
  SaysCollectives(PeerWatch& watch, std::atomic<shm::SaidWait>& word) : watch_(watch), says_(word) {
    static_assert(PeerWatch::kUnknownPeer == SaysWait::kUnknownRank);
    watch_.set_on_wait([this](uint32_t peer, int64_t since_ns) {
      if (since_ns == 0) return says_.take_back();
      says_.say(shm::WaitsFor::kCollective, peer, since_ns);
    });
  }
  SaysCollectives(const SaysCollectives&) = delete;
  ~SaysCollectives() { watch_.set_on_wait({}); }

 private:
  PeerWatch& watch_;
  SaysWait says_;  // used by the watch thread alone
};

}  // namespace elixir
