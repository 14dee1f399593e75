#include "base/processors.h"

#include <sched.h>

#include <memory>

namespace elixir {
namespace {

constexpr int kMaxProcessors = 8192;

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

}  // namespace

std::vector<int> usable_processors() {
  const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(kMaxProcessors));
  const size_t set_bytes = CPU_ALLOC_SIZE(kMaxProcessors);
  CPU_ZERO_S(set_bytes, set.get());
  std::vector<int> processors;
  if (::sched_getaffinity(0, set_bytes, set.get()) == 0) {
    for (int i = 0; i < kMaxProcessors; ++i) {
      if (CPU_ISSET_S(i, set_bytes, set.get())) processors.push_back(i);
    }
  }
  if (processors.empty()) processors.push_back(0);
  return processors;
}

}  // namespace elixir
