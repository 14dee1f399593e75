// elixir_gpu_probe of kernels/gpu_probe.h: what the link to each GPU gives, measured.

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "client/device/cuda_entry.h"
#include "client/device/cuda_result.h"
#include "kernels/gpu_probe.h"

namespace elixir {
namespace {

using Json = nlohmann::json;

constexpr int kRounds = 4;  // the best counts

// What a failed call leaves for the report; later calls are skipped by those who look at ok().
class Calls {
 public:
  bool ok() const { return first_failure_.empty(); }
  const std::string& first_failure() const { return first_failure_; }
  bool operator()(cudaError_t result, const char* what) {
    if (result == cudaSuccess) return true;
    (void)cudaGetLastError();
    if (ok()) {
      first_failure_ = cuda_status(static_cast<CudaResult>(result), cudaGetErrorString(result),
                                   cudaGetErrorName(result), what)
                           .message();
    }
    return false;
  }

 private:
  std::string first_failure_;
};

// Host memory as elixird's is: mapped, then registered.
class HostBuffer {
 public:
  explicit HostBuffer(size_t bytes) : bytes_(bytes) {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return;
    std::memset(memory_, 1, bytes);
    Calls pin;
    pinned_ = pin(cudaHostRegister(memory_, bytes, cudaHostRegisterDefault),
                  "page-lock host memory (cudaHostRegister)");
    pinning_error_ = pin.first_failure();
  }
  ~HostBuffer() {
    if (pinned_) (void)cudaHostUnregister(memory_);
    if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_);
  }
  HostBuffer(const HostBuffer&) = delete;
  void* get() const { return memory_ == MAP_FAILED ? nullptr : memory_; }
  const std::string& pinning_error() const { return pinning_error_; }

 private:
  const size_t bytes_;
  void* memory_ = nullptr;
  bool pinned_ = false;
  std::string pinning_error_;
};

// Everything that copies on one device need; freed together.
struct Link {
  explicit Link(size_t bytes) : bytes(bytes), to_device(bytes), from_device(bytes) {
    for (int i = 0; i < 2; ++i) {
      call(cudaMalloc(&device[i], bytes), "allocate a buffer on the GPU");
      call(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), "make a stream");
      call(cudaEventCreate(&start[i]), "make an event");
      call(cudaEventCreate(&end[i]), "make an event");
    }
    if (to_device.get() == nullptr || from_device.get() == nullptr) {
      call(cudaErrorMemoryAllocation, "map host memory for the measurement");
    }
  }
  ~Link() {
    for (int i = 0; i < 2; ++i) {
      (void)cudaFree(device[i]);
      if (stream[i] != nullptr) (void)cudaStreamDestroy(stream[i]);
      if (start[i] != nullptr) (void)cudaEventDestroy(start[i]);
      if (end[i] != nullptr) (void)cudaEventDestroy(end[i]);
    }
    (void)cudaGetLastError();
  }
  Link(const Link&) = delete;

  const size_t bytes;
  HostBuffer to_device, from_device;
  void* device[2] = {};
  cudaStream_t stream[2] = {};
  cudaEvent_t start[2] = {}, end[2] = {};
  Calls call;
};

// Direction 0 is to the device, 1 from it.
void enqueue_copy(Link* link, int direction) {
  Calls& call = link->call;
  call(cudaEventRecord(link->start[direction], link->stream[direction]), "record an event");
  if (direction == 0) {
    call(cudaMemcpyAsync(link->device[0], link->to_device.get(), link->bytes,
                         cudaMemcpyHostToDevice, link->stream[0]),
         "copy to the GPU");
  } else {
    call(cudaMemcpyAsync(link->from_device.get(), link->device[1], link->bytes,
                         cudaMemcpyDeviceToHost, link->stream[1]),
         "copy from the GPU");
  }
  call(cudaEventRecord(link->end[direction], link->stream[direction]), "record an event");
}

// From the first start to the last end of the directions asked for, in milliseconds; 0 on failure.
float elapsed_ms(Link* link, bool down, bool up) {
  Calls& call = link->call;
  call(cudaDeviceSynchronize(), "wait for the GPU");
  float longest = 0;
  for (int from = 0; from < 2; ++from) {
    for (int to = 0; to < 2; ++to) {
      const bool used = (from == 0 ? down : up) && (to == 0 ? down : up);
      float ms = 0;
      if (used &&
          call(cudaEventElapsedTime(&ms, link->start[from], link->end[to]), "time a copy")) {
        longest = std::max(longest, ms);
      }
    }
  }
  return link->call.ok() ? longest : 0;
}

// 1e9 bytes a second, all directions together; 0 on failure.
double rate_gb_s(Link* link, bool down, bool up) {
  float best_ms = 0;
  for (int round = 0; round <= kRounds && link->call.ok(); ++round) {
    if (down) enqueue_copy(link, 0);
    if (up) enqueue_copy(link, 1);
    const float ms = elapsed_ms(link, down, up);
    const bool warm = round > 0;
    if (warm && ms > 0 && (best_ms == 0 || ms < best_ms)) best_ms = ms;
  }
  const double bytes = static_cast<double>(link->bytes) * (down && up ? 2 : 1);
  return best_ms > 0 ? bytes / best_ms * 1e-6 : 0;
}

void measure_link(Json* gpu, size_t copy_bytes) {
  Link link(copy_bytes);
  (*gpu)["pinning_error"] = link.to_device.pinning_error();
  (*gpu)["h2d_gb_s"] = rate_gb_s(&link, true, false);
  (*gpu)["d2h_gb_s"] = rate_gb_s(&link, false, true);
  (*gpu)["both_gb_s"] = rate_gb_s(&link, true, true);
  (*gpu)["error"] = link.call.first_failure();
}

Json look_at_gpu(const CudaDeviceInfo& info, size_t copy_bytes) {
  Json gpu = {{"index", info.index},
              {"name", info.name},
              {"memory_bytes", info.memory_bytes},
              {"free_bytes", 0},
              {"pci_address", info.pci_address},
              {"numa_node", info.numa_node},
              {"uuid", info.uuid},
              {"compute_capability", fmt::format("{}.{}", info.compute_major, info.compute_minor)},
              {"read_only_pinning", false},
              {"pinning_error", ""},
              {"error", ""},
              {"h2d_gb_s", 0.0},
              {"d2h_gb_s", 0.0},
              {"both_gb_s", 0.0}};
  Calls call;
  size_t free_bytes = 0, total_bytes = 0;
  int read_only = 0;
  call(cudaSetDevice(info.index), "use the GPU") &&
      call(cudaMemGetInfo(&free_bytes, &total_bytes), "ask for its memory") &&
      call(cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, info.index),
           "ask for its attributes");
  gpu["free_bytes"] = free_bytes;
  gpu["read_only_pinning"] = read_only != 0;
  gpu["error"] = call.first_failure();
  if (call.ok() && copy_bytes > 0) measure_link(&gpu, copy_bytes);
  return gpu;
}

std::string probe(size_t copy_bytes) {
  const CudaDevices& devices = elixir_cuda_library()->devices();
  Json report = {{"driver", devices.driver_version},    {"runtime", devices.runtime_version},
                 {"nccl", devices.nccl_version},        {"torch", TORCH_VERSION},
                 {"error", devices.why_none.message()}, {"gpus", Json::array()}};
  for (const CudaDeviceInfo& info : devices.devices) {
    report["gpus"].push_back(look_at_gpu(info, copy_bytes));
  }
  return report.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace
}  // namespace elixir

size_t elixir_gpu_probe(char* buffer, size_t buffer_bytes, size_t copy_bytes) {
  std::string text;
  try {
    text = elixir::probe(copy_bytes);
  } catch (const std::exception& failure) {  // nothing of C++ leaves
    text = nlohmann::json{{"error", failure.what()}, {"gpus", nlohmann::json::array()}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  if (buffer_bytes > 0) {
    const size_t written = std::min(text.size(), buffer_bytes - 1);
    std::memcpy(buffer, text.data(), written);
    buffer[written] = '\0';
  }
  return text.size();
}
