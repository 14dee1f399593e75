#pragma once

// Sends and receives between any two ranks of a job, over Gloo's connections. Another thread can
// interrupt them, unlike Gloo's own collectives. When a rank has died, every wait here ends with an
// error that names it.

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
  // All ranks call it; it returns when all are connected. timeout_s: the limit of a wait for a rank
  // that is alive. The rendezvous must outlive the transport.
  static Result<std::unique_ptr<GlooTransport>> connect(const Rendezvous& rendezvous,
                                                        double timeout_s);
  ~GlooTransport();
  GlooTransport(const GlooTransport&) = delete;

  uint32_t rank() const { return rendezvous_.rank(); }
  uint32_t size() const { return rendezvous_.size(); }

  // Ends all transfers in progress and all that begin later. Any thread.
  void abort();

  // Not ok once a rank has died, a transfer has failed, or abort() was called.
  Status status() const;

  // Aborts the transport after a failure that `what` describes, and returns the reason. This is the
  // death of a rank if one is known. Except with kTimedOut, it waits some seconds for such news.
  // Otherwise the reason is `cause` with `code`, and it is reported to the other ranks.
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

  // for the thread that makes transfers
  uint64_t transfers_ = 0;  // number of Transfers made so far

  mutable Mutex mutex_;
  // Owned by their Transfers.
  std::unordered_set<c10d::Work*> under_way_ ELIXIR_GUARDED_BY(mutex_);
  Status failure_ ELIXIR_GUARDED_BY(mutex_);  // the first
  std::atomic<bool> aborted_ = false;         // or failed
};

// The sends and receives of one collective. They pair with the peer's Transfers of the same number
// and signature, and there in the order of the calls. If ranks make different collectives, they
// wait, and PeerWatch reports it.
//
// Used by one thread. The memory must stay until wait() has returned or thrown. The destructor
// aborts the transport unless wait() has returned.
class Transfers {
 public:
  Transfers(GlooTransport& transport, CollectiveSignature collective);
  ~Transfers();
  Transfers(const Transfers&) = delete;

  // Each begins a transfer; with 0 bytes it does nothing. Both throw elixir::Error.
  void receive(uint32_t from, std::byte* memory, size_t bytes);
  void send(uint32_t to, const std::byte* memory, size_t bytes);
  // Begins to send this rank's shard of `block` to all ranks, and to receive theirs in their
  // places.
  void gather(std::byte* block, size_t shard_bytes);

  // Returns when all transfers are done; throws elixir::Error when one fails.
  void wait();

 private:
  struct Transfer {
    c10::intrusive_ptr<c10d::Work> work;
    uint32_t peer;
  };
  // begin(tensors, rank) calls Gloo, which reads or writes the memory.
  template <typename Begin>
  void add(uint32_t peer, const std::byte* memory, size_t bytes, const Begin& begin);

  GlooTransport& transport_;
  const CollectiveSignature collective_;
  const uint64_t number_;  // from 1 on
  const int tag_;
  std::vector<Transfer> transfers_;
  size_t done_ = 0;  // number of finished transfers at the front of transfers_
};

}  // namespace elixir
