#pragma once

// What FAKE_NCCL_* asks for; README.md has the list. Read once; an unreadable value ends the
// process.

#include <nccl.h>

#include <cstdint>

namespace fake_nccl {

struct Injected {
  bool here = false;                  // else nothing is wrong
  ncclResult_t result = ncclSuccess;  // ncclSuccess: it hangs, and NCCL never says so
  bool at_call = false;               // the function returns it; else the work fails as it runs
};

// For the next collective of this process, which is that rank of its communicator.
Injected inject(int rank);

// Whether ranks are told that another one has failed (ncclRemoteError), as over a network. Else
// they wait for it, as NCCL's ranks of one machine may.
bool tells_peers();

// Virtual nanoseconds in which a rank receives so many bytes.
int64_t duration_ns(double bytes);

// Whether ranks that make different collectives wait for ever, as NCCL's may; else it is an error.
bool mismatches_hang();

}  // namespace fake_nccl
