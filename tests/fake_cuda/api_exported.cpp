// fake_cuda.h.

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/races.h"

namespace fake_cuda {

FAKE_CUDA_API cudaError_t fake_cuda_enqueue(cudaStream_t handle, const FakeCudaWork* given) {
  return call("fake_cuda_enqueue", [&](Lock&) {
    Stream* const stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    Work work = {.name = given->name,
                 .kind = WorkKind::kOther,
                 .duration_ns = given->duration_ns,
                 .accesses = {},
                 .run = {}};
    for (size_t i = 0; i < given->n_accesses; ++i) {
      const FakeCudaAccess& access = given->accesses[i];
      work.accesses.push_back(
          {reinterpret_cast<uintptr_t>(access.memory), access.bytes, access.writes != 0});
    }
    if (given->run != nullptr) {
      work.run = [run = given->run, argument = given->argument] { run(argument); };
    }
    enqueue(*stream, std::move(work));
    return cudaSuccess;
  });
}

FAKE_CUDA_API void* fake_cuda_alias(const void* device_memory) {
  const DeviceMemory* const memory = memory_at(device_memory);
  return memory == nullptr ? nullptr : memory->alias(device_memory);
}

FAKE_CUDA_API int fake_cuda_device_of(const void* memory) { return device_of(memory); }

FAKE_CUDA_API cudaError_t fake_cuda_error(void) {
  const Lock lock(runtime().mutex);
  return runtime().injected;
}

FAKE_CUDA_API int64_t fake_cuda_host_ns(void) {
  const Lock lock(runtime().mutex);
  return host_clock().now_ns;
}

FAKE_CUDA_API uint64_t fake_cuda_races(void) {
  const Lock lock(runtime().mutex);
  return races_found();
}

FAKE_CUDA_API void fake_cuda_count(const char* name, uint64_t by) {
  const Lock lock(runtime().mutex);
  runtime().counters.counts[name] += by;
}

FAKE_CUDA_API int fake_cuda_contexts(int device) {
  const Lock lock(runtime().mutex);
  return runtime().contexts.contains(device) ? 1 : 0;
}

}  // namespace fake_cuda
