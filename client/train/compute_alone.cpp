#include "client/train/compute_alone.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace elixir {

void compute_alone() {
  at::get_num_threads();  // LibTorch sets a new thread's number when it is first asked for
  // LibTorch's own OpenMP, which keeps the number by thread. A LibTorch without OpenMP has one pool
  // for all threads, which is never too large.
  using SetThreads = void (*)(int);
  const auto set_threads =
      reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
}

}  // namespace elixir
