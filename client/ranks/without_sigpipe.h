#pragma once

#include <signal.h>

namespace elixir {

// While it lives, a write of its thread to a connection that is gone fails with EPIPE and raises no
// SIGPIPE, which would end the program; threads that are begun meanwhile stay so. Gloo writes
// without MSG_NOSIGNAL, and what the program does on SIGPIPE elsewhere is its own affair.
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
    while (::sigtimedwait(&sigpipe_, nullptr, &now) > 0) {  // one raised meanwhile
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;

 private:
  sigset_t sigpipe_, before_;
};

}  // namespace elixir
