// NCCL's functions that make, ask and end communicators; and what the fake does not do, which says
// so.

#include <algorithm>
#include <cstring>

#include "tests/fake_nccl/communicator.h"

namespace fake_nccl {
namespace {

ncclResult_t join(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank) {
  std::shared_ptr<Communicator> made;
  const ncclResult_t result = Communicator::join(id, ranks, rank, &made);
  *comm = result == ncclSuccess ? new ncclComm{std::move(made)} : nullptr;
  return result;
}

// What the ranks of a communicator tell each other before a split.
struct Wish {
  int color, key, rank;
  ncclUniqueId id;
};

std::vector<Wish> tell_all(Communicator& communicator, const Wish& own) {
  std::vector<Wish> wishes(communicator.ranks());
  wishes[own.rank] = own;
  Transfers transfers;
  for (int other = 0; other < communicator.ranks(); ++other) {
    if (other == own.rank) continue;
    transfers.send(other, reinterpret_cast<const std::byte*>(&own), sizeof own, Kind::kSplit,
                   ncclUint8);
    transfers.receive(other, reinterpret_cast<std::byte*>(&wishes[other]), sizeof own, Kind::kSplit,
                      ncclUint8);
  }
  if (!communicator.transfer(transfers)) wishes.clear();
  return wishes;
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

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t*) {
  return fake_nccl::join(comm, ranks, ids[0], rank);
}

// Ranks of one color, in the order of their keys; the id is that of the first of them.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  using fake_nccl::Wish;
  fake_nccl::Communicator& parent = *comm->communicator;
  Wish own{color, key, parent.rank(), fake_nccl::make_unique_id()};
  std::vector<Wish> wishes = fake_nccl::tell_all(parent, own);
  *made = nullptr;
  if (wishes.empty()) return ncclInternalError;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::erase_if(wishes, [&](const Wish& wish) { return wish.color != color; });
  std::stable_sort(wishes.begin(), wishes.end(),
                   [](const Wish& a, const Wish& b) { return a.key < b.key; });
  const auto place = std::find_if(wishes.begin(), wishes.end(),
                                  [&](const Wish& wish) { return wish.rank == own.rank; });
  return fake_nccl::join(made, static_cast<int>(wishes.size()), wishes[0].id,
                         static_cast<int>(place - wishes.begin()));
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

// ---- registered memory: nothing is gained by it here ----

ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t, void* memory, size_t, void** handle) {
  *handle = memory;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

// ---- what torch imports and the fake does not do ----

ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) { return not_done("ncclCommInitAll"); }

ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) {
  return not_done("ncclCommShrink");
}

ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int) {
  return not_done("ncclCommWindowRegister");
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  return not_done("ncclCommWindowDeregister");
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t,
                                      ncclComm_t) {
  return not_done("ncclRedOpCreatePreMulSum");
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return not_done("ncclRedOpDestroy"); }

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return not_done("ncclGroupSimulateEnd"); }

// Declared in nccl_device.h, which needs nvcc.
extern "C" ncclResult_t ncclDevCommCreate(ncclComm_t, const void*, void*) {
  return not_done("ncclDevCommCreate");
}
extern "C" ncclResult_t ncclDevCommDestroy(ncclComm_t, const void*) {
  return not_done("ncclDevCommDestroy");
}
