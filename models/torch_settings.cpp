#include "models/torch_settings.h"

#include <ATen/Context.h>
#include <malloc.h>

#include <cstdlib>

namespace elixir {
namespace {

void be_deterministic(at::Context& torch) {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  torch.setDeterministicAlgorithms(true, /*warn_only=*/false);
  // torch would fill all new memory with NaNs, to find who reads it; nothing here does, and it
  // takes as many kernels again as training itself.
  torch.setDeterministicFillUninitializedMemory(false);
}

}  // namespace

void set_up_torch(const TrainOptions& options) {
  at::Context& torch = at::globalContext();
  if (options.deterministic) be_deterministic(torch);
  switch (options.attention) {
    case AttentionChoice::kAuto:
      return;
    case AttentionChoice::kFlash:
      return torch.setSDPUseCuDNN(false);
    case AttentionChoice::kCudnn:
      return torch.setSDPPriorityOrder({static_cast<int64_t>(at::SDPBackend::cudnn_attention),
                                        static_cast<int64_t>(at::SDPBackend::flash_attention),
                                        static_cast<int64_t>(at::SDPBackend::efficient_attention),
                                        static_cast<int64_t>(at::SDPBackend::math),
                                        static_cast<int64_t>(at::SDPBackend::overrideable)});
    case AttentionChoice::kMath:
      torch.setSDPUseCuDNN(false);
      torch.setSDPUseFlash(false);
      torch.setSDPUseMemEfficient(false);
  }
}

void keep_freed_memory() {
  for (const char* name :
       {"GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}) {
    if (std::getenv(name) != nullptr) return;
  }
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);  // never
}

}  // namespace elixir
