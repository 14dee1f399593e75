#pragma once

// Knows within seconds, on every rank, that a rank of the job has died, and which.
//
// A star of TCP connections: rank 0 listens, every other rank connects once and says who it is. A
// connection that ends without a goodbye is a death; rank 0 tells it to all, with its name. If it
// is rank 0's, everybody knows that. A process that is stopped or slow keeps its connections and is
// not dead; a machine that is lost, without its system saying so, is missed by TCP itself, within
// kLostMachineSeconds (keepalive while nothing is sent, TCP_USER_TIMEOUT otherwise). What a
// connection says first is a token that only the job's ranks have; others are dropped.
//
// Each rank has one thread, which does nothing but this. The first death is the one that counts: it
// is the cause, and what follows it are consequences. Ranks found dead together are all named.

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

// Where rank 0 listens, and what to say there; rank 0 gives it to the others by the rendezvous.
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

  // Rank 0: listens on `address`, a port of the system's choice. members: all ranks of the job.
  static Result<std::unique_ptr<PeerWatch>> listen(const std::string& address,
                                                   std::vector<Member> members);
  // Another rank: connects. kUnavailable, kTimedOut.
  static Result<std::unique_ptr<PeerWatch>> connect(const WatchEndpoint& endpoint, uint32_t rank,
                                                    std::vector<Member> members, double timeout_s);
  // Rank 0, once: waits for every rank to have connected; kTimedOut names those that have not.
  Status await_connected(double timeout_s);

  // Says goodbye, unless a death is known or an exception is under way (then this rank is failing,
  // and the others are to hear it).
  ~PeerWatch();

  const WatchEndpoint& endpoint() const;  // rank 0
  const std::vector<Member>& members() const;

  // kPeerLost, with the name of the rank (or ranks) that died first, once known; or what was
  // reported. Any thread; one load while all is well.
  Status status() const;
  // The same, after a wait of at most `timeout_s` for a death to become known: for a thread whose
  // collective failed, which is how a death is felt before it is known.
  Status await_status(double timeout_s) const;

  // A death, or a failure of this rank itself, that was learned of elsewhere; told to all.
  void report(const Status& status);

  // This rank waits in its collective of the host of that number, from 1 on; 0: no more. Two ranks
  // that have waited for kStuckSeconds in different collectives of one number would wait for ever:
  // that is kProtocol, and names both. Any thread; two stores.
  static constexpr int kStuckSeconds = 5;
  void set_waiting(uint64_t number, CollectiveSignature collective = {});
  // Of the collectives of its device, which have numbers of their own: how many it has asked for,
  // and the oldest that is not done (0: all are). Told alike are two ranks whose oldest ones have
  // one number and differ, and a rank that has asked for more than another one had when it began to
  // wait in a collective of the host, which the first has not come to. Any thread; three stores.
  void set_on_device(uint64_t made, uint64_t oldest, CollectiveSignature of_oldest = {});
  // For which rank, at the moment. The log tells it every kSayWaitingSeconds.
  static constexpr int kSayWaitingSeconds = 30;
  void set_waiting_for(uint32_t peer);

  // Called about once a second, on the watch's thread: for which rank this one waits in a
  // collective (kUnknownPeer: in one of its device) and since when, CLOCK_MONOTONIC; 0: it does not
  // wait. It must not block. An empty one takes it back, and returns when none is running.
  static constexpr uint32_t kUnknownPeer = UINT32_MAX;
  void set_on_wait(std::function<void(uint32_t peer, int64_t since_ns)> tell);

  // Asked about once a second, on the watch's thread, whether this rank is well, as long as
  // status() is ok. What it answers else is reported, as by report(); a kPeerLost only once kBlameS
  // have passed in which nobody told of another rank. It must not block. An empty one takes it
  // back, and returns when none is running.
  static constexpr double kBlameS = 5;
  void set_health(std::function<Status()> ask);

  // Called once, on the watch's thread, as soon as status() is not ok; at once if it is already.
  // It must not block for long, nor call set_callback. An empty one takes it back, and returns when
  // none is running.
  void set_callback(std::function<void(const Status&)> callback);

 private:
  struct State;
  explicit PeerWatch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace elixir
