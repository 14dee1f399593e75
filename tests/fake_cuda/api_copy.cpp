// Copies and fills.

#include <cstdio>
#include <cstring>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/host_memory.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  cudaMemcpyKind kind = cudaMemcpyDefault;  // as the addresses say, once it is checked
};

cudaError_t bad_copy(const Copy& copy, const char* why) {
  std::fprintf(stderr, "fake CUDA: a copy of %zu bytes from %p to %p %s\n", copy.bytes, copy.from,
               copy.to, why);
  ++runtime().counters.bad_copies;
  return cudaErrorInvalidValue;
}

// What the addresses say; `copy.kind` must not contradict.
cudaError_t find_kind(Copy& copy) {
  const DeviceMemory* const to = memory_at(copy.to);
  const DeviceMemory* const from = memory_at(copy.from);
  if ((to != nullptr && !to->allocated(copy.to, copy.bytes)) ||
      (from != nullptr && !from->allocated(copy.from, copy.bytes))) {
    return bad_copy(copy, "leaves the device's allocation");
  }
  const cudaMemcpyKind is =
      to != nullptr ? (from != nullptr ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                    : (from != nullptr ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  if (copy.kind != cudaMemcpyDefault && copy.kind != is) {
    return bad_copy(copy, "goes another way than its kind says");
  }
  copy.kind = is;
  return cudaSuccess;
}

int64_t link_ns(size_t bytes, bool pinned) {
  const Settings& set = settings();
  const double rate = set.link_bytes_per_ns * (pinned ? 1 : set.pageable_share);
  return rate == 0 ? 0 : static_cast<int64_t>(static_cast<double>(bytes) / rate);
}

struct Direction {
  const char *name, *work;
  WorkKind kind;
};
Direction direction_of(cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return {"h2d", "a copy to the device", WorkKind::kH2d};
    case cudaMemcpyDeviceToHost:
      return {"d2h", "a copy from the device", WorkKind::kD2h};
    case cudaMemcpyDeviceToDevice:
      return {"d2d", "a copy on the device", WorkKind::kD2d};
    default:
      return {"h2h", "a copy on the host", WorkKind::kOther};
  }
}

Access access(const void* memory, size_t bytes, bool writes) {
  return {reinterpret_cast<uintptr_t>(memory), bytes, writes};
}

Work work_of(const Copy& copy, bool pinned) {
  const Direction direction = direction_of(copy.kind);
  const bool over_link = direction.kind == WorkKind::kH2d || direction.kind == WorkKind::kD2h;
  Work work = {
      .name = direction.work,
      .kind = direction.kind,
      .duration_ns = over_link ? link_ns(copy.bytes, pinned) : 0,
      .accesses = {},
      .run = [copy] { std::memmove(reachable(copy.to), reachable(copy.from), copy.bytes); }};
  // Of pageable memory CUDA makes a copy while the caller waits.
  const auto note = [&](const void* memory, bool writes) {
    if (pinned || device_of(memory) >= 0)
      work.accesses.push_back(access(memory, copy.bytes, writes));
  };
  note(copy.from, false);
  note(copy.to, true);
  return work;
}

cudaError_t enqueue_copy(Lock& lock, Copy copy, cudaStream_t handle, const char* call_name) {
  if (copy.bytes == 0) return cudaSuccess;
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const cudaError_t outcome = find_kind(copy);
  if (outcome != cudaSuccess) return outcome;
  Locking locking = Locking::kPinned;
  if (copy.kind == cudaMemcpyHostToDevice) locking = locking_of(copy.from, copy.bytes);
  if (copy.kind == cudaMemcpyDeviceToHost) locking = locking_of(copy.to, copy.bytes);
  if (locking == Locking::kAcross) {
    return bad_copy(copy, "lies across page-locked ranges, or partly in one");
  }
  const bool pinned = locking == Locking::kPinned;
  runtime().counters.count_copy(direction_of(copy.kind).name, pinned, copy.bytes, stream->number);
  enqueue(*stream, work_of(copy, pinned));
  if (!pinned || copy.kind == cudaMemcpyHostToHost) {
    wait_for_stream(lock, *stream, "a pageable copy");
  } else if (call_name != nullptr) {
    wait_for_stream(lock, *stream, call_name);
  }
  return cudaSuccess;
}

cudaError_t enqueue_fill(void* memory, int value, size_t bytes, cudaStream_t handle) {
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const DeviceMemory* const owner = memory_at(memory);
  if (owner == nullptr || !owner->allocated(memory, bytes)) return cudaErrorInvalidValue;
  enqueue(*stream, {.name = "a fill",
                    .kind = WorkKind::kMemset,
                    .duration_ns = 0,
                    .accesses = {access(memory, bytes, true)},
                    .run = [=] { std::memset(reachable(memory), value, bytes); }});
  return cudaSuccess;
}

}  // namespace

FAKE_CUDA_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                          cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Lock& lock) {
    return enqueue_copy(lock, {to, from, bytes, kind}, stream, nullptr);
  });
}

FAKE_CUDA_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                                     cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&](Lock& lock) {
    return enqueue_copy(lock, {to, from, bytes, kind}, nullptr, "cudaMemcpy");
  });
}

FAKE_CUDA_API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                              cudaStream_t stream) {
  return call("cudaMemcpyPeerAsync", [&](Lock& lock) {
    return enqueue_copy(lock, {to, from, bytes, cudaMemcpyDeviceToDevice}, stream, nullptr);
  });
}

FAKE_CUDA_API cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes,
                                          cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Lock&) { return enqueue_fill(memory, value, bytes, stream); });
}

FAKE_CUDA_API cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return call("cudaMemset", [&](Lock&) { return enqueue_fill(memory, value, bytes, nullptr); });
}

// Variables of kernels, which nobody here reads.
FAKE_CUDA_API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t,
                                             cudaMemcpyKind) {
  return call("cudaMemcpyToSymbol", [](Lock&) { return cudaSuccess; });
}

FAKE_CUDA_API cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  constexpr size_t kBytes = 4096;
  return cudaMalloc(address, kBytes);
}

}  // namespace fake_cuda
