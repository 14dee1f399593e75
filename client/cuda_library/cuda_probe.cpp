// elixir_gpu_probe of kernels/gpu_probe.h: what the link to each GPU gives, measured.

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.h"
#include "client/cuda/cuda_result.h"
#include "client/cuda_library/cuda_entry.h"
#include "kernels/gpu_probe.h"
#include "shm/segment.h"

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
    fail(cuda_status(static_cast<CudaResult>(result), cudaGetErrorString(result),
                     cudaGetErrorName(result), what)
             .message());
    return false;
  }
  void fail(const std::string& text) {
    if (ok()) first_failure_ = text;
  }

 private:
  std::string first_failure_;
};

// Host memory as a trainer has it of elixird: a sealed memfd that another mapping fills, mapped for
// writing, page-locked, and, where the trainer only reads it, then protected. What is copied slowly
// in a training is copied slowly here.
class HostBuffer {
 public:
  enum class Use { kParams, kGrads };
  HostBuffer(size_t bytes, Use use) {
    const Status status = make(bytes, use);
    if (!status.ok()) error_ = status.message();
  }
  ~HostBuffer() {
    if (pinned_) (void)cudaHostUnregister(get());
  }
  HostBuffer(const HostBuffer&) = delete;
  void* get() const { return trainers_ ? trainers_->data() : nullptr; }
  const std::string& error() const { return error_; }  // why there is no memory
  const std::string& pinning_error() const { return pinning_error_; }

 private:
  Status make(size_t bytes, Use use) {
    Result<shm::Segment> elixirds = shm::Segment::create("elixir-probe", bytes);
    if (!elixirds.ok()) return elixirds.status();
    elixirds_.emplace(std::move(*elixirds));
    UniqueFd fd(::fcntl(elixirds_->fd(), F_DUPFD_CLOEXEC, 0));
    Result<shm::Segment> trainers =
        shm::Segment::map(std::move(fd), bytes, shm::Access::kReadWrite);
    if (!trainers.ok()) return trainers.status();
    trainers_.emplace(std::move(*trainers));
    // An old kernel has no such seal; elixird says so and goes on.
    [[maybe_unused]] const Status sealed = elixirds_->close_to_new_writers();
    Calls pin;
    pinned_ = pin(cudaHostRegister(get(), bytes, cudaHostRegisterDefault),
                  "page-lock host memory (cudaHostRegister)");
    pinning_error_ = pin.first_failure();
    return use == Use::kParams ? trainers_->protect() : Status();
  }

  std::optional<shm::Segment> elixirds_, trainers_;
  bool pinned_ = false;
  std::string error_, pinning_error_;
};

// Everything that copies on one device need; freed together.
struct Link {
  explicit Link(size_t bytes)
      : bytes(bytes),
        to_device(bytes, HostBuffer::Use::kParams),
        from_device(bytes, HostBuffer::Use::kGrads) {
    for (int i = 0; i < 2; ++i) {
      call(cudaMalloc(&device[i], bytes), "allocate a buffer on the GPU");
      call(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), "make a stream");
      call(cudaEventCreate(&start[i]), "make an event");
      call(cudaEventCreate(&end[i]), "make an event");
    }
    for (const HostBuffer* buffer : {&to_device, &from_device}) {
      if (!buffer->error().empty()) call.fail(buffer->error());
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
  const std::string& params_error = link.to_device.pinning_error();
  (*gpu)["pinning_error"] = params_error.empty() ? link.from_device.pinning_error() : params_error;
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
