// The end of the process: the report, and who touched device memory where a fault ends it.

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/counters.h"
#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/races.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

void on_fault(int signal, siginfo_t* info, void*) {
  if (device_of(info->si_addr) >= 0) {
    std::fprintf(stderr, "fake CUDA: the host touched device memory at %p\n", info->si_addr);
  } else {
    std::fprintf(stderr, "fake CUDA: signal %d at %p\n", signal, info->si_addr);
  }
  void* stack[40];
  backtrace_symbols_fd(stack, backtrace(stack, 40), STDERR_FILENO);
  ::signal(signal, SIG_DFL);  // and the instruction comes again
}

__attribute__((constructor)) void begin() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

__attribute__((destructor)) void end() {
  const Lock lock(runtime().mutex);
  write_report();
  if (races_found() > 0 && settings().race_exit != 0) std::_Exit(settings().race_exit);
}

}  // namespace

// Runs no destructors.
FAKE_CUDA_API void _exit(int code) {
  {
    // Without waiting: another thread of a process that ends may hold it.
    const std::unique_lock lock(runtime().mutex, std::try_to_lock);
    if (lock) write_report();
  }
  const auto next = reinterpret_cast<void (*)(int)>(dlsym(RTLD_NEXT, "_exit"));
  next(code);
  std::abort();
}

}  // namespace fake_cuda
