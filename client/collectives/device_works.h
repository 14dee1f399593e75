#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <deque>

#include "base/mutex.h"
#include "base/status.h"
#include "client/ranks/collective_kind.h"

namespace c10d {
class Work;
}

namespace elixir {

// NCCL collectives in progress. A failed collective reports nothing: the device waits in it
// forever, and so does a thread that waits for the device. So another thread must call ask().
class DeviceWorks {
 public:
  // timeout_s: the limit for one collective, from its start.
  DeviceWorks(c10::Device device, double timeout_s) : device_(device), timeout_s_(timeout_s) {}

  // Called by the thread that makes collectives. `what` must live as long as the program.
  void add(const char* what, c10::intrusive_ptr<c10d::Work> work,
           CollectiveSignature collective = {});

  // Called by one thread at a time, which may be new to the device. It does not block. Returns an
  // error when a collective has failed: kPeerLost if NCCL knows that it failed on another rank,
  // kTimedOut if a rank has not joined in time, else kInternal.
  Status ask();

  bool all_done() const;  // as of the last ask()

  struct Progress {
    uint64_t made = 0;    // added so far; they are numbered from 1
    uint64_t oldest = 0;  // the first one not done, as of the last ask(); 0: none
    CollectiveSignature of_oldest = {};
  };
  Progress progress() const;

 private:
  struct UnderWay {
    const char* what = nullptr;
    c10::intrusive_ptr<c10d::Work> work;
    int64_t since_ns = 0;
    CollectiveSignature collective = {};
  };
  Status ask(const UnderWay& oldest, bool& done) const;

  const c10::Device device_;
  const double timeout_s_;
  mutable Mutex mutex_;
  std::deque<UnderWay> under_way_ ELIXIR_GUARDED_BY(mutex_);  // only ask() removes them
  uint64_t made_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir
