#pragma once

// Sends and receives between any two ranks of a job, over Gloo's connections. What is under way can
// be broken off from another thread, which Gloo's own collectives cannot; when a rank has died
// every wait here ends with that rank's name.

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "client/collectives/rendezvous.h"
#include "client/ranks/collective_kind.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace elixir {

class GlooTransport {
 public:
  // All ranks; returns when all are connected. timeout_s: of a wait for a rank that is alive. The
  // rendezvous outlives it.
  static Result<std::unique_ptr<GlooTransport>> connect(const Rendezvous& rendezvous,
                                                        double timeout_s);
  ~GlooTransport();
  GlooTransport(const GlooTransport&) = delete;

  uint32_t rank() const { return rendezvous_.rank(); }
  uint32_t size() const { return rendezvous_.size(); }

  // Ends everything that is under way, and all that is begun from now on. Any thread.
  void abort();

  // Not ok once something has failed or been aborted.
  Status status() const;

  // Why something failed that `what` says: the death of a rank, if that becomes known within some
  // seconds, else `cause` in a status of the code given, which the other ranks are told, too.
  Status explain(Code code, const std::string& what, const std::string& cause);

 private:
  friend class Transfers;
  GlooTransport(const Rendezvous& rendezvous, double timeout_s)
      : rendezvous_(rendezvous), timeout_s_(timeout_s) {}

  void begin(c10d::Work* work);
  void end(c10d::Work* work);
  void await(c10d::Work& work, uint32_t peer, CollectiveSignature collective);
  void set_failure(const Status& failure);

  // constant
  const Rendezvous& rendezvous_;
  const double timeout_s_;
  c10::intrusive_ptr<c10d::Backend> gloo_;  // null when there is one rank

  // of the thread that makes transfers
  uint64_t transfers_ = 0;  // so far

  mutable Mutex mutex_;
  // Owned by their Transfers.
  std::unordered_set<c10d::Work*> under_way_ ELIXIR_GUARDED_BY(mutex_);
  Status failure_ ELIXIR_GUARDED_BY(mutex_);  // the first
  std::atomic<bool> aborted_ = false;         // or failed
};

// What one collective sends and receives; a message is matched with the peer's message of the
// same place among those of its Transfers, and its Transfers with the peer's of the same number and
// signature: should ranks make different collectives, they wait, and PeerWatch finds out.
// Used by one thread. The memory must stay until wait() has returned or thrown; an object that goes
// without a wait aborts the transport.
class Transfers {
 public:
  Transfers(GlooTransport& transport, CollectiveSignature collective);
  ~Transfers();
  Transfers(const Transfers&) = delete;

  // Begin; nothing happens for no bytes. Throw elixir::Error.
  void receive(uint32_t from, std::byte* memory, size_t bytes);
  void send(uint32_t to, const std::byte* memory, size_t bytes);
  // This rank's shard of `block` to all, and theirs to their places.
  void gather(std::byte* block, size_t shard_bytes);

  // Returns when all of them are done; throws elixir::Error when one fails.
  void wait();

 private:
  struct Transfer {
    c10::intrusive_ptr<c10d::Work> work;
    uint32_t peer;
  };
  // begin(tensors, rank) is Gloo's; it reads or writes the memory.
  template <typename Begin>
  void add(uint32_t peer, const std::byte* memory, size_t bytes, const Begin& begin);

  GlooTransport& transport_;
  const CollectiveSignature collective_;
  const uint64_t number_;  // from 1 on
  const int tag_;
  std::vector<Transfer> transfers_;
  size_t done_ = 0;  // of transfers_, from the first on
};

}  // namespace elixir
