#pragma once

#include <cerrno>

namespace elixir {

// Makes a call again that a signal has interrupted, a debugger's or that of SIGCONT too, which no
// mask keeps out. `Failure` is an exception whose num() is an errno: zmq::error_t, since libzmq
// looks for signals before it does what it was asked, so that nothing is done twice.
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
