#include "client/tensors/activation_host.h"

#include "base/mutex.h"
#include "client/tensors/chunk_storage.h"

namespace elixir {
namespace {

struct Current {
  Mutex mutex;
  std::weak_ptr<ActivationHost> host ELIXIR_GUARDED_BY(mutex);  // its optimizer holds it
};

// Several ranks may be threads of one process, each with its device.
thread_local std::weak_ptr<ActivationHost> own_host;

Current& current() {
  static auto* const it = new Current;  // backward's threads may outlive main()
  return *it;
}

}  // namespace

bool can_be_sent(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kOthers({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                         c10::DispatchKey::FuncTorchBatched,
                                         c10::DispatchKey::FuncTorchGradWrapper,
                                         c10::DispatchKey::ZeroTensor});
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         !tensor.key_set().has_any(kOthers) && !tensor.is_conj() && !tensor.is_neg() &&
         tensor.has_storage() && tensor.numel() > 0 && tensor.storage_offset() == 0 &&
         tensor.is_non_overlapping_and_dense() && chunk_storage_of(tensor) == nullptr;
}

void set_activation_host(const std::shared_ptr<ActivationHost>& host) {
  own_host = host;
  const MutexLock lock(current().mutex);
  current().host = host;
}

std::shared_ptr<ActivationHost> activation_host() {
  if (std::shared_ptr<ActivationHost> own = own_host.lock()) return own;
  const MutexLock lock(current().mutex);
  return current().host.lock();
}

}  // namespace elixir
