#include "client/cuda/cuda_result.h"

namespace elixir {
namespace {

Code code_of(CudaResult result) {
  switch (result) {
    case CudaResult::kMemoryAllocation:
      return Code::kResourceExhausted;
    case CudaResult::kInsufficientDriver:
    case CudaResult::kDevicesUnavailable:
    case CudaResult::kNoDevice:
    case CudaResult::kSystemNotReady:
    case CudaResult::kSystemDriverMismatch:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

}  // namespace

bool cuda_context_is_lost(CudaResult result) {
  const int number = static_cast<int>(result);
  // 214..226: memory and links that the hardware found faulty. 700..721 save three: a kernel
  // failed.
  if (number == 214 || number == 220 || number == 226) return true;
  return number == 700 || number == 702 || number == 710 || (number >= 714 && number <= 719) ||
         number == 721;
}

std::string_view cuda_remedy(CudaResult result) {
  switch (result) {
    case CudaResult::kMemoryAllocation:
      return "nvidia-smi shows who holds the GPU's memory; end other programs, or lower "
             "--rcache-blocks or the batch";
    case CudaResult::kInsufficientDriver:
      return "install NVIDIA driver 580 or newer, which CUDA 13 needs (nvidia-smi shows the one in "
             "use), or train with --device cpu";
    case CudaResult::kDevicesUnavailable:
      return "another process holds the GPU exclusively (nvidia-smi -q -d COMPUTE); end it, or "
             "nvidia-smi -c DEFAULT";
    case CudaResult::kNoDevice:
      return "nvidia-smi -L lists the GPUs; see that CUDA_VISIBLE_DEVICES names one and that a "
             "container was started with --gpus all";
    case CudaResult::kNoKernelImage:
      return "the GPU is of a generation that this build has no code for; build with "
             "-DCMAKE_CUDA_ARCHITECTURES=native on its machine";
    case CudaResult::kNotPermitted:
    case CudaResult::kNotSupported:
      return "the driver or the container does not allow it; nvidia-smi -q tells the mode it is in";
    case CudaResult::kSystemNotReady:
      return "GPUs behind NVSwitch wait for their fabric: systemctl start nvidia-fabricmanager";
    case CudaResult::kSystemDriverMismatch:
      return "NVIDIA's kernel module and its library are of different versions, as after an "
             "upgrade: reboot, or reload the module";
    case CudaResult::kEccUncorrectable:
      return "the GPU's memory has a fault: nvidia-smi -q -d ECC; the GPU must be reset";
    default:
      break;
  }
  if (cuda_context_is_lost(result)) {
    return "the device's state is lost: end this program and start it again; dmesg has the "
           "driver's "
           "line (Xid), CUDA_LAUNCH_BLOCKING=1 finds the operator";
  }
  return "dmesg has the driver's side of it (lines with NVRM or Xid)";
}

Status cuda_status(CudaResult result, std::string_view text, std::string_view name,
                   std::string_view what) {
  return error(code_of(result), "CUDA failed to {}: {} ({}); {}", what, text, name,
               cuda_remedy(result));
}

}  // namespace elixir
