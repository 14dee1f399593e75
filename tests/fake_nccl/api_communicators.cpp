// NCCL's functions that make, ask and end communicators; and what the fake does not do, which says
// so.

#include "tests/fake_nccl/communicator.h"

namespace fake_nccl {
namespace {

ncclResult_t join(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank) {
  std::shared_ptr<Communicator> made;
  const ncclResult_t result = Communicator::join(id, ranks, rank, &made);
  *comm = result == ncclSuccess ? new ncclComm{std::move(made)} : nullptr;
  return result;
}

ncclResult_t not_done(const char* function) {
  set_last_error(std::string(function) + " is not in the fake");
  return ncclInvalidUsage;
}

}  // namespace
}  // namespace fake_nccl

using fake_nccl::not_done;

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = fake_nccl::make_unique_id();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return fake_nccl::join(comm, ranks, id, rank);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  return fake_nccl::join(comm, ranks, id, rank);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->communicator->drain();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->communicator->drain();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->communicator->abort();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->communicator->error();
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->communicator->ranks();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->communicator->rank();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return fake_nccl::last_error(); }

// ---- what torch imports and Elixir never reaches ----

// By other types than NCCL's headers declare: the arguments are not looked at.
#define FAKE_NCCL_ABSENT(name)                                                               \
  extern "C" __attribute__((visibility("default"))) int fake_absent_##name() __asm__(#name); \
  int fake_absent_##name() { return not_done(#name); }

FAKE_NCCL_ABSENT(ncclAlltoAll)
FAKE_NCCL_ABSENT(ncclBcast)
FAKE_NCCL_ABSENT(ncclBroadcast)
FAKE_NCCL_ABSENT(ncclCommDeregister)
FAKE_NCCL_ABSENT(ncclCommInitAll)
FAKE_NCCL_ABSENT(ncclCommInitRankScalable)
FAKE_NCCL_ABSENT(ncclCommRegister)
FAKE_NCCL_ABSENT(ncclCommShrink)
FAKE_NCCL_ABSENT(ncclCommSplit)
FAKE_NCCL_ABSENT(ncclCommWindowDeregister)
FAKE_NCCL_ABSENT(ncclCommWindowRegister)
FAKE_NCCL_ABSENT(ncclDevCommCreate)
FAKE_NCCL_ABSENT(ncclDevCommDestroy)
FAKE_NCCL_ABSENT(ncclGroupSimulateEnd)
FAKE_NCCL_ABSENT(ncclMemAlloc)
FAKE_NCCL_ABSENT(ncclMemFree)
FAKE_NCCL_ABSENT(ncclRecv)
FAKE_NCCL_ABSENT(ncclRedOpCreatePreMulSum)
FAKE_NCCL_ABSENT(ncclRedOpDestroy)
FAKE_NCCL_ABSENT(ncclReduce)
FAKE_NCCL_ABSENT(ncclSend)
