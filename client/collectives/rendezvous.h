#pragma once

// The ranks of a job find one another here, on one node or several, through a c10d::TCPStore at the
// launch environment's master address. Rank 0 hosts the store, unless torchrun does
// (LaunchEnvironment::starter_hosts_store). Keys are prefixed with the job's name, so that two
// jobs, or two starts of one, never mix in one store.
//
// Afterwards each rank knows the others (members), learns of their deaths (watch), and can make
// communicators (store).

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
  std::string gpu_uuid;  // the GPU on which this rank computes; "" on CPUs
  // The time within which all ranks must join; they may start minutes apart. 0: the variable
  // ELIXIR_RENDEZVOUS_TIMEOUT_S, else kDefaultTimeoutSeconds.
  double timeout_s = 0;
  static constexpr double kDefaultTimeoutSeconds = 300;
};

class Rendezvous {
 public:
  // Returns when every rank has joined. kInvalidArgument: no master address, or two ranks on one
  // GPU (refuse_shared_gpus); kUnavailable: the address cannot be reached or used; kTimedOut: names
  // the missing ranks. After 2 s the log says which ranks it waits for.
  static Result<std::unique_ptr<Rendezvous>> join(const LaunchEnvironment& environment,
                                                  const RendezvousOptions& options = {});
  ~Rendezvous();

  uint32_t rank() const;
  uint32_t size() const;
  const std::vector<Member>& members() const;  // by rank

  // This node's numeric address for the other ranks. If GLOO_SOCKET_IFNAME is set, it is that
  // interface's address. Otherwise it is loopback if there is one node, and with several nodes the
  // local address of the route to the master address.
  const std::string& address() const;

  // For communicators; keys of different users need different prefixes (c10d::PrefixStore).
  const c10::intrusive_ptr<c10d::Store>& store() const;

  PeerWatch& watch() const;

  // Returns when all ranks have called this with the same word, each once. Use it before an
  // operation that needs all ranks and cannot be interrupted, such as making a communicator. A
  // death ends the wait; after the rendezvous' timeout it returns kTimedOut and names the missing
  // ranks.
  Status meet(const std::string& word) const;

 private:
  struct State;
  explicit Rendezvous(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace elixir
