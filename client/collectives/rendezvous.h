#pragma once

// How the ranks of a job find one another, on one node or several: a c10d::TCPStore at the launch
// environment's master address, hosted by rank 0 (or by torchrun, where it says so). Keys are
// prefixed with the job's name, so that two jobs, or two starts of one, never mix in one store.
//
// Afterwards each rank knows who the others are (members), learns of their deaths (watch), and can
// make communicators (store).

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/ranks/launch_environment.h"
#include "client/ranks/member.h"
#include "client/ranks/peer_watch.h"

namespace c10d {
class Store;
}

namespace elixir {

struct RendezvousOptions {
  std::string gpu_uuid;  // of the GPU this rank computes on; "" on CPUs
  // For all ranks to come: they may start minutes apart. 0: the environment variable
  // ELIXIR_RENDEZVOUS_TIMEOUT_S, else kDefaultTimeoutSeconds.
  double timeout_s = 0;
  static constexpr double kDefaultTimeoutSeconds = 300;
};

class Rendezvous {
 public:
  // Returns when every rank has come. kInvalidArgument: no master address, or two ranks on one GPU
  // (refuse_shared_gpus); kUnavailable: the address cannot be reached, or used; kTimedOut: names
  // the ranks that are missing. Says what it waits for in the log after 2 s.
  static Result<std::unique_ptr<Rendezvous>> join(const LaunchEnvironment& environment,
                                                  const RendezvousOptions& options = {});
  ~Rendezvous();

  uint32_t rank() const;
  uint32_t size() const;
  const std::vector<Member>& members() const;  // by rank

  // This node's numeric address towards the other ranks: GLOO_SOCKET_IFNAME's, if that is set, else
  // loopback on one node, else that of the route to the master address.
  const std::string& address() const;

  // For communicators; keys of different users need different prefixes (c10d::PrefixStore).
  const c10::intrusive_ptr<c10d::Store>& store() const;

  PeerWatch& watch() const;

  // Returns when all ranks have come here with the same word, each once: before what cannot be
  // broken off and needs them all, such as the making of a communicator. A death ends it;
  // kTimedOut, after the rendezvous' timeout, names the ranks that are missing.
  Status meet(const std::string& word) const;

 private:
  struct State;
  explicit Rendezvous(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace elixir
