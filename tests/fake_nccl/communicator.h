#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_nccl/call.h"
#include "tests/fake_nccl/wire.h"

namespace fake_nccl {

// One rank's end of a communicator. Its collectives run as work of streams, in the order of the
// calls, whatever their streams. A collective that waits for a rank that does not join blocks its
// stream until the communicator is aborted, as with NCCL. Any thread may abort it and ask for its
// error.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Joins on the calling thread's current device. Returns when all ranks are there.
  static ncclResult_t join(const ncclUniqueId& id, int ranks, int rank,
                           std::shared_ptr<Communicator>* result);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  ncclResult_t error() const { return error_.load(); }

  // Enqueues calls that run together (a group).
  ncclResult_t enqueue(const std::vector<Call>& calls, cudaStream_t stream);
  // Returns when all enqueued calls are done, or the communicator is aborted.
  void drain();
  // Ends running calls and drops enqueued calls. Results are undefined.
  void abort();

 private:
  struct Batch;
  Communicator(std::unique_ptr<Wire> wire, int ranks, int rank, int device)
      : wire_(std::move(wire)), ranks_(ranks), rank_(rank), device_(device) {}

  ncclResult_t meet();
  ncclResult_t await_others();
  ncclResult_t check(const Call& call) const;
  void run(Batch& batch);
  bool await_turn(uint64_t number);
  void make(const std::vector<Call>& calls);
  bool advance_to_the_end(Transfers& transfers);
  void fail(ncclResult_t result, const std::string& text);  // then waits for abort()
  void end_turn();

  // constant
  const std::unique_ptr<Wire> wire_;
  const int ranks_, rank_, device_;

  std::atomic<ncclResult_t> error_{ncclSuccess};
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t enqueued_ = 0, ended_ = 0;  // batches; guarded by mutex_
  bool running_ = false;               // guarded by mutex_
};

// The text of ncclGetLastError().
void set_last_error(const std::string& text);
const char* last_error();

}  // namespace fake_nccl

struct ncclComm {
  std::shared_ptr<fake_nccl::Communicator> communicator;
};
