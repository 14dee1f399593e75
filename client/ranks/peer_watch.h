#pragma once

// Tells every rank within seconds that a rank of the job has died, and which one.
//
// It is a star of TCP connections: rank 0 listens, and every other rank connects once and says who
// it is. A connection that ends without a goodbye is a death; rank 0 tells its name to all. If rank
// 0 dies, everybody knows that it was rank 0. A process that is stopped or slow keeps its
// connections and is not dead. If a machine is lost and its system says nothing, TCP notices within
// kLostMachineSeconds (keepalive while nothing is sent, TCP_USER_TIMEOUT otherwise). Every
// connection first sends a token that only the job's ranks have. Connections without it are
// dropped.
// Note: docs/design/elixir.md, "death of a process".
//
// Each rank has one thread, which does nothing else. Only the first death counts: it is the cause,
// and later ones are its consequences. Ranks found dead together are all named.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "client/ranks/collective_kind.h"
#include "client/ranks/member.h"

namespace elixir {

// The address where rank 0 listens, and the token to send there. Rank 0 gives both to the others in
// the rendezvous.
struct WatchEndpoint {
  std::string address;  // numeric, IPv4 or IPv6
  uint16_t port = 0;
  std::string token;  // 32 hexadecimal digits, random

  std::string encode() const;
  static Result<WatchEndpoint> decode(std::string_view text);
};

class PeerWatch {
 public:
  static constexpr int kLostMachineSeconds = 20;

  // Rank 0: listens on `address`, at a port that the system chooses. members: all ranks of the job.
  static Result<std::unique_ptr<PeerWatch>> listen(const std::string& address,
                                                   std::vector<Member> members);
  // Another rank: connects. Returns kUnavailable or kTimedOut on failure.
  static Result<std::unique_ptr<PeerWatch>> connect(const WatchEndpoint& endpoint, uint32_t rank,
                                                    std::vector<Member> members, double timeout_s);
  // Rank 0, once: waits until every rank has connected. kTimedOut names those that have not.
  Status await_connected(double timeout_s);

  // Says goodbye, unless a death is known or an exception is in flight. (Then this rank is failing,
  // and the others must hear of it.)
  ~PeerWatch();

  const WatchEndpoint& endpoint() const;  // rank 0
  const std::vector<Member>& members() const;

  // kPeerLost with the name of the rank (or ranks) that died first, once known; or the status that
  // was reported. Any thread; one load while all is well.
  Status status() const;
  // status(), after a wait of at most `timeout_s` for a death to become known. Call it in a thread
  // whose collective failed: a collective fails before the death that caused it is known.
  Status await_status(double timeout_s) const;

  // Reports a death, or a failure of this rank itself, to all ranks. Call it if something other
  // than the watch has found it.
  void report(const Status& status);

  // Says that this rank waits in the host collective with this number, counted from 1; 0: it no
  // longer waits. Two ranks that wait in different collectives of one number would wait forever.
  // After kStuckSeconds this is kProtocol, and names both. Any thread; two stores.
  static constexpr int kStuckSeconds = 5;
  void set_waiting(uint64_t number, CollectiveSignature collective = {});
  // The collectives of a rank's device have their own numbers. This says how many of them the rank
  // has asked for, and which is the oldest that is not done (0: all are done). Two cases are errors
  // as above. Two ranks' oldest collectives have one number and differ. Or a rank has asked for
  // more collectives than another one had when it began to wait in a host collective, and the first
  // has not reached that host collective. Any thread; three stores.
  void set_on_device(uint64_t made, uint64_t oldest, CollectiveSignature of_oldest = {});
  // Names the rank that this one waits for now. The log names it every kSayWaitingSeconds.
  static constexpr int kSayWaitingSeconds = 30;
  void set_waiting_for(uint32_t peer);

  // Sets a function that the watch's thread calls about once a second with this rank's wait. `peer`
  // is the rank for which it waits in a collective; kUnknownPeer: it waits in a collective of its
  // device. `since_ns` is the wait's begin in ns of CLOCK_MONOTONIC; 0: it does not wait. The
  // function must not block. An empty function removes it, and the call returns when none is
  // running.
  static constexpr uint32_t kUnknownPeer = UINT32_MAX;
  void set_on_wait(std::function<void(uint32_t peer, int64_t since_ns)> tell);

  // Sets a function that the watch's thread calls about once a second while status() is ok. It
  // returns whether this rank is well. If it is not, the status is reported, as by report(). A
  // kPeerLost is reported only after kBlameS, if nobody has named another rank by then. The
  // function must not block. An empty function removes it, and the call returns when none is
  // running.
  static constexpr double kBlameS = 5;
  void set_health(std::function<Status()> ask);

  // Sets a function that the watch's thread calls once, as soon as status() is not ok. If it is not
  // ok already, the call comes at once. The function must not block for long, nor call
  // set_callback. An empty function removes it, and the call returns when none is running.
  void set_callback(std::function<void(const Status&)> callback);

 private:
  struct State;
  explicit PeerWatch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace elixir
