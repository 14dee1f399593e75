// NCCL's functions that move data, and groups.

#include <utility>

#include "tests/fake_nccl/communicator.h"

namespace fake_nccl {
namespace {

struct Asked {
  ncclComm_t comm;
  cudaStream_t stream;
  Call call;
};

thread_local int group_depth = 0;
thread_local std::vector<Asked> group;

// Calls of one group go on together: those of a communicator and stream as one piece of work.
ncclResult_t enqueue_group() {
  std::vector<std::pair<std::pair<ncclComm_t, cudaStream_t>, std::vector<Call>>> batches;
  for (const Asked& asked : std::exchange(group, {})) {
    const std::pair key(asked.comm, asked.stream);
    if (batches.empty() || batches.back().first != key) batches.push_back({key, {}});
    batches.back().second.push_back(asked.call);
  }
  for (const auto& [key, calls] : batches) {
    const ncclResult_t result = key.first->communicator->enqueue(calls, key.second);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, const Call& call) {
  if (comm == nullptr) return ncclInvalidArgument;
  group.push_back({comm, stream, call});
  return group_depth == 0 ? enqueue_group() : ncclSuccess;
}

}  // namespace
}  // namespace fake_nccl

using fake_nccl::Call;
using fake_nccl::Kind;
using fake_nccl::submit;

ncclResult_t ncclGroupStart() {
  ++fake_nccl::group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (fake_nccl::group_depth == 0) return ncclInvalidUsage;
  return --fake_nccl::group_depth == 0 ? fake_nccl::enqueue_group() : ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, stream, {Kind::kAllGather, send, receive, count, type});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, stream, {Kind::kReduceScatter, send, receive, count, type, op});
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, stream, {Kind::kAllReduce, send, receive, count, type, op});
}
