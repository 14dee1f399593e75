#include "client/train/step_losses.h"

#include "client/tensors/resolved.h"

namespace elixir {

at::Tensor StepLosses::number(const at::Tensor& loss) {
  return resolved(loss.detach()).to(at::kDouble);
}

const double* StepLosses::bring(uint32_t step, const at::Tensor& loss) {
  constexpr size_t kBytes = sizeof(double);
  if (on_host_ == nullptr) {
    computed_ = device_.create_event();
    on_device_ = device_.allocate(kKept * kBytes, "losses", "use fewer rCache blocks");
    on_host_ = reinterpret_cast<double*>(device_.allocate_host(kKept * kBytes, "losses"));
  }
  const uint32_t slot = step % kKept;
  // torch may give the tensor's memory away at once, in the order of kCompute.
  std::byte* const from = on_device_ + slot * kBytes;
  device_.copy(Stream::kCompute, from, static_cast<const std::byte*>(loss.const_data_ptr()),
               kBytes);
  device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kDownload, computed_);
  device_.download(Stream::kDownload, reinterpret_cast<std::byte*>(on_host_ + slot), from, kBytes);
  return on_host_ + slot;
}

}  // namespace elixir
