#include "client/tensors/activation_host.h"

#include "base/mutex.h"

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
