#pragma once

// libelixir_cuda.so: CudaDevice, NCCL and the kernels, loaded when a GPU is wanted, so that
// programs link neither CUDA nor libtorch_cuda. A machine without a GPU never loads them, nor does
// a program that says that it computes on the CPU (prepare_torch).

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

// Raised with every change of this header, of device.h, or of a type they name; then
// scripts/versions.py --store.
inline constexpr uint32_t kCudaLibraryVersion = 10;
// versions.py: version 10, 7ff37ddd02460535

struct CudaDeviceInfo {
  int index = 0;  // as torch and CUDA_VISIBLE_DEVICES number them
  std::string name;
  uint64_t memory_bytes = 0;
  std::string pci_address;  // "0000:c1:00.0"
  int numa_node = -1;       // -1: the system tells none
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

// What the library does. Any thread may call it; errors come back as Status, with CUDA's own text.
class CudaLibrary {
 public:
  virtual ~CudaLibrary() = default;

  // Looked up once. Starts no context on a device.
  virtual const CudaDevices& devices() = 0;

  // The NUMA node that the device hangs on; -1 when unknown.
  virtual int numa_node_of(int device_index) = 0;

  // Makes the device the calling thread's current one (torch's too) and keeps it so: call it, and
  // the Device, from the thread that runs the model. One Device a process.
  // `memory_limit_bytes`: for torch and Elixir together; 0: as much as there is.
  virtual Result<std::unique_ptr<Device>> make_device(int device_index,
                                                      uint64_t memory_limit_bytes) = 0;

  // NCCL for tensors on the calling thread's current device. Rendezvous through `store` at the
  // first collective. Work::wait() lets the current stream wait, not the caller. A collective that
  // fails or takes longer than `timeout` ends nothing by itself: Work::isCompleted() and
  // exception() tell, and the caller aborts.
  virtual Result<c10::intrusive_ptr<c10d::Backend>> make_nccl(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      std::chrono::milliseconds timeout) = 0;

  // Ends what hangs: every collective of the backend in flight, on this rank. The backend is of no
  // use afterwards.
  virtual Status abort_nccl(c10d::Backend& backend) = 0;
};

// Loads the library at the first call; later calls give the same answer. kUnavailable when it is
// not found or cannot be loaded, kVersionMismatch when it is of another build; base/gpu.h says
// where it is looked for. A library without a GPU is no error here: ask devices().
//
// torch asks whether there is CUDA once, at the first torch::manual_seed or backward() for example,
// and stays with the answer. So a program that links this also loads the library when torch asks
// and a GPU is present, and when a tensor is made on a CUDA device or moved there.
Result<CudaLibrary*> load_cuda_library();

// elixir::prepare_torch(), with the reason why not. After kCPU load_cuda_library() gives
// kUnavailable.
Status prepare_cuda(c10::DeviceType type);
// Whether prepare_cuda(kCPU) was called.
bool cuda_is_left_out();

}  // namespace elixir
