#pragma once

// The settings FAKE_NCCL_*; README.md has the list. They are read once; an unreadable value ends
// the process.

#include <nccl.h>

#include <cstdint>

namespace fake_nccl {

struct Injected {
  bool here = false;                  // false: nothing is injected
  ncclResult_t result = ncclSuccess;  // ncclSuccess: the collective hangs without an error
  bool at_call = false;               // the function returns it; else the work fails as it runs
};

// The fault for the next collective of this process. `rank` is its rank in the communicator.
Injected inject(int rank);

// Whether ranks learn that another rank has failed (ncclRemoteError), as over a network. Else they
// wait for it, as NCCL's ranks on one machine may.
bool tells_peers();

// Virtual nanoseconds that a rank needs to receive `bytes`.
int64_t duration_ns(double bytes);

// Whether ranks that make different collectives wait forever, as NCCL's may; else it is an error.
bool mismatches_hang();

}  // namespace fake_nccl
