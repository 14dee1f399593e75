#include "base/processors.h"

#include <limits.h>
#include <sched.h>
#include <unistd.h>

namespace elixir {
namespace {

constexpr int kMaxProcessors = 8192;

struct ProcessorSet {
  ProcessorSet() { CPU_ZERO_S(bytes, set); }
  ~ProcessorSet() { CPU_FREE(set); }
  ProcessorSet(const ProcessorSet&) = delete;

  cpu_set_t* const set = CPU_ALLOC(kMaxProcessors);
  const size_t bytes = CPU_ALLOC_SIZE(kMaxProcessors);
};

}  // namespace

std::vector<int> usable_processors() {
  const ProcessorSet usable;
  std::vector<int> processors;
  if (::sched_getaffinity(0, usable.bytes, usable.set) == 0) {
    for (int i = 0; i < kMaxProcessors; ++i) {
      if (CPU_ISSET_S(i, usable.bytes, usable.set)) processors.push_back(i);
    }
  }
  if (processors.empty()) processors.push_back(0);
  return processors;
}

void bind_this_thread(const std::vector<int>& processors) {
  const ProcessorSet bound;
  for (const int processor : processors) CPU_SET_S(processor, bound.bytes, bound.set);
  ::sched_setaffinity(0, bound.bytes, bound.set);
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace elixir
