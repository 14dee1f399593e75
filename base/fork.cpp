#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace elixir {
namespace {

std::atomic<uint32_t> count{0};

}  // namespace

uint32_t forks() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++count; });
  (void)registered;  // ENOMEM: children cannot be told apart, which nothing before a fork needs
  return count.load(std::memory_order_relaxed);
}

}  // namespace elixir
