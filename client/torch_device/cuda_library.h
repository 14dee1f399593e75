#pragma once

// libelixir_cuda.so: CudaDevice, NCCL and the kernels. It is loaded when a GPU is needed, so that
// programs link neither CUDA nor libtorch_cuda. A machine without a GPU never loads it, nor does a
// program that chooses the CPU (prepare_torch).

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/device/device.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace elixir {

// Raise it with every change of this header, of device.h, or of a type they name; then run
// scripts/versions.py --store.
inline constexpr uint32_t kCudaLibraryVersion = 11;
// versions.py: version 11, f08a2b55f1125d65

struct CudaDeviceInfo {
  int index = 0;  // as torch and CUDA_VISIBLE_DEVICES number them
  std::string name;
  uint64_t memory_bytes = 0;
  std::string pci_address;  // "0000:c1:00.0"
  int numa_node = -1;       // -1: unknown
  std::string uuid;         // "GPU-...", as nvidia-smi prints it
  int compute_major = 0, compute_minor = 0;
};

struct CudaDevices {
  std::vector<CudaDeviceInfo> devices;
  Status why_none;              // ok when there are devices; else cause and remedy, kUnavailable
  std::string driver_version;   // the newest CUDA that the driver runs, "13.0"; "": no driver
  std::string runtime_version;  // "13.0"
  std::string nccl_version;     // "2.28.9"
};

// The functions of the library. Any thread may call them; errors come back as Status, with CUDA's
// own text.
class CudaLibrary {
 public:
  virtual ~CudaLibrary() = default;

  // Looks for devices once, and creates no context on any.
  virtual const CudaDevices& devices() = 0;

  // The NUMA node of the device; -1 if unknown.
  virtual int numa_node_of(int device_index) = 0;

  // Makes the device the calling thread's current one (torch's too) and keeps it so: call it, and
  // the Device, from the thread that runs the model. One Device per process. `memory_limit_bytes`:
  // for torch and Elixir together; 0: as much as there is.
  virtual Result<std::unique_ptr<Device>> make_device(int device_index,
                                                      uint64_t memory_limit_bytes) = 0;

  // NCCL for tensors on the calling thread's current device. The ranks meet through `store` at the
  // first collective. In Work::wait() the current stream waits, not the caller. A collective that
  // fails or takes longer than `timeout` ends nothing by itself: Work::isCompleted() and
  // exception() report it, and the caller aborts.
  virtual Result<c10::intrusive_ptr<c10d::Backend>> make_nccl(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      std::chrono::milliseconds timeout) = 0;

  // Aborts every collective of the backend that is in flight on this rank. Do not use the backend
  // afterwards.
  virtual Status abort_nccl(c10d::Backend& backend) = 0;
};

// Loads the library at the first call; later calls return the same result. The error is
// kUnavailable if the library is not found or cannot be loaded, and kVersionMismatch if it is of
// another build. The search path is in base/gpu.h. A missing GPU is no error here: call devices().
//
// torch asks only once whether there is CUDA, for example at the first torch::manual_seed or
// backward(), and keeps the answer. So a program that links this loads the library at that moment,
// too, if a GPU is present. A tensor that is made on a CUDA device or moved there also loads it.
Result<CudaLibrary*> load_cuda_library();

// Like elixir::prepare_torch(), but returns a Status. After kCPU, load_cuda_library() returns
// kUnavailable.
Status prepare_cuda(c10::DeviceType type);
// Whether prepare_cuda(kCPU) was called.
bool cuda_is_left_out();

}  // namespace elixir
