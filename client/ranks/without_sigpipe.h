#pragma once

#include <signal.h>

namespace elixir {

// While it lives, if its thread writes to a connection that is gone, the write fails with EPIPE. It
// raises no SIGPIPE, which would end the program. Threads that start during that time keep this
// setting. It is needed because Gloo writes without MSG_NOSIGNAL. It does not change how the rest
// of the program handles SIGPIPE.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    while (::sigtimedwait(&sigpipe_, nullptr, &now) > 0) {  // drops one raised in the scope
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;

 private:
  sigset_t sigpipe_, before_;
};

}  // namespace elixir
