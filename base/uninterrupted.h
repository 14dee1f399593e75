#pragma once

#include <cerrno>

namespace elixir {

// Repeats a call that a signal has interrupted. No mask keeps out SIGCONT or a debugger's signals.
// The exception `Failure` has an errno as num(), like zmq::error_t. Nothing is done twice, because
// libzmq looks for signals before it does any work.
template <typename Failure, typename Function>
auto uninterrupted(Function&& call) {
  for (;;) {
    try {
      return call();
    } catch (const Failure& failure) {
      if (failure.num() != EINTR) throw;
    }
  }
}

}  // namespace elixir
