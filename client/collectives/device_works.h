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

// NCCL's collectives under way. A collective that fails tells nobody: the device goes on waiting in
// it, and so does who waits for the device. So somebody who does not must ask.
class DeviceWorks {
 public:
  // timeout_s: for a collective, from its begin on.
  DeviceWorks(c10::Device device, double timeout_s) : device_(device), timeout_s_(timeout_s) {}

  // By the thread that makes collectives. `what` lives as long as the program.
  void add(const char* what, c10::intrusive_ptr<c10d::Work> work,
           CollectiveSignature collective = {});

  // By one thread at a time, which need not have met the device before; waits for nothing. Not ok
  // when a collective has failed: kPeerLost if on another rank, as far as NCCL knows, kTimedOut if
  // a rank has not joined in time, else kInternal.
  Status ask();

  bool all_done() const;  // as of the last ask()

  struct Progress {
    uint64_t made = 0;    // added so far, which gives each its number, from 1 on
    uint64_t oldest = 0;  // that is not done, as of the last ask(); 0: all are
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
  std::deque<UnderWay> under_way_ ELIXIR_GUARDED_BY(mutex_);  // taken out by ask() alone
  uint64_t made_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir
