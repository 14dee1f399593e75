#include "client/cuda_library/cuda_entry.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/gpu.h"
#include "base/throw_error.h"
#include "client/cuda/cuda_device.h"
#include "client/cuda_library/cuda_nccl.h"

namespace elixir {
namespace {

// 13000 is "13.0".
std::string cuda_version_text(int version) {
  return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string nccl_version_text() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string visible_devices_text() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES={})", visible);
}

Status why_no_device(cudaError_t result, int driver_version) {
  const auto number = static_cast<CudaResult>(result);
  if (number == CudaResult::kInsufficientDriver && driver_version == 0) {
    return error(Code::kUnavailable,
                 "no NVIDIA driver is loaded in this machine or container; {}; a container must be "
                 "started with --gpus all",
                 cuda_remedy(number));
  }
  if (number == CudaResult::kInsufficientDriver) {
    return error(
        Code::kUnavailable, "NVIDIA's driver is for CUDA {} and this build needs CUDA {}; {}",
        cuda_version_text(driver_version), cuda_version_text(CUDART_VERSION), cuda_remedy(number));
  }
  if (result == cudaSuccess || number == CudaResult::kNoDevice) {
    return error(Code::kUnavailable, "NVIDIA's driver shows no GPU{}; {}", visible_devices_text(),
                 cuda_remedy(CudaResult::kNoDevice));
  }
  return Status(Code::kUnavailable, cuda_status(number, cudaGetErrorString(result),
                                                cudaGetErrorName(result), "look for GPUs")
                                        .message());
}

CudaDeviceInfo look_at_device(int index) {
  CudaDeviceInfo info;
  info.index = index;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) {
    info.name = properties.name;
    info.memory_bytes = properties.totalGlobalMem;
    info.uuid = uuid_text(properties.uuid);
    info.compute_major = properties.major;
    info.compute_minor = properties.minor;
  }
  char address[32] = "";
  if (cudaDeviceGetPCIBusId(address, sizeof address, index) == cudaSuccess) {
    info.pci_address = address;
    std::transform(info.pci_address.begin(), info.pci_address.end(), info.pci_address.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    info.numa_node = numa_node_of_pci(info.pci_address);
  }
  (void)cudaGetLastError();
  return info;
}

CudaDevices look_at_devices() {
  CudaDevices found;
  int driver_version = 0, runtime_version = 0, count = 0;
  (void)cudaDriverGetVersion(&driver_version);
  (void)cudaRuntimeGetVersion(&runtime_version);
  found.driver_version = cuda_version_text(driver_version);
  found.runtime_version = cuda_version_text(runtime_version);
  found.nccl_version = nccl_version_text();
  const cudaError_t result = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (result != cudaSuccess || count == 0) {
    found.why_none = why_no_device(result, driver_version);
    return found;
  }
  for (int i = 0; i < count; ++i) found.devices.push_back(look_at_device(i));
  return found;
}

class LoadedCuda final : public CudaLibrary {
 public:
  const CudaDevices& devices() override {
    static const CudaDevices found = look_at_devices();
    return found;
  }

  int numa_node_of(int device_index) override {
    const auto& all = devices().devices;
    const bool known = device_index >= 0 && static_cast<size_t>(device_index) < all.size();
    return known ? all[static_cast<size_t>(device_index)].numa_node : -1;
  }

  Result<std::unique_ptr<Device>> make_device(int device_index,
                                              uint64_t memory_limit_bytes) override {
    ELIXIR_RETURN_IF_ERROR(check_index(device_index));
    ELIXIR_RETURN_IF_ERROR(check_torch());
    try {
      return std::unique_ptr<Device>(
          new CudaDevice(make_cuda_driver(), device_index, memory_limit_bytes));
    } catch (const Error& failure) {
      return Status(failure.code(), failure.what());
    }
  }

  Result<c10::intrusive_ptr<c10d::Backend>> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout) override {
    if (devices().devices.empty()) return devices().why_none;
    try {
      return make_nccl_backend(store, rank, size, timeout);
    } catch (const std::exception& failure) {
      return nccl_failure("start", failure);
    }
  }

  Status abort_nccl(c10d::Backend& backend) override {
    try {
      backend.abort();
    } catch (const std::exception& failure) {
      return nccl_failure("abort", failure);
    }
    return Status();
  }

 private:
  Status check_index(int index) {
    const size_t count = devices().devices.size();
    if (count == 0) return devices().why_none;
    if (index >= 0 && static_cast<size_t>(index) < count) return Status();
    return error(
        Code::kInvalidArgument,
        "device {} was asked for and this process sees {}, numbered from 0{}; start no more "
        "ranks on this node than it has GPUs",
        index, count, visible_devices_text());
  }

  // See load_cuda_library().
  static Status check_torch() {
    if (at::detail::getCUDAHooks().hasCUDA()) return Status();
    return error(Code::kUnavailable,
                 "torch looked for CUDA before libelixir_cuda.so was loaded, and found none; call "
                 "elixir::prepare_torch(at::kCUDA) at the start of main()");
  }

  static Status nccl_failure(const char* what, const std::exception& failure) {
    return error(Code::kInternal, "NCCL failed to {}: {}; NCCL_DEBUG=INFO tells more", what,
                 failure.what());
  }
};

}  // namespace
}  // namespace elixir

uint32_t elixir_cuda_library_version() { return elixir::kCudaLibraryVersion; }

elixir::CudaLibrary* elixir_cuda_library() {
  static auto* library = new elixir::LoadedCuda;  // torch's threads may outlive main()
  return library;
}
