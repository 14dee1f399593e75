#include "tests/fake_cuda/call.h"

#include <chrono>

#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

int64_t real_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// A thread that enqueues is as fast as its calls. One that only waits may sleep between its
// questions: its clock goes with the real one.
void take_time() {
  ThreadState& thread = this_thread();
  HostClock& clock = host_clock();
  clock.now_ns += settings().call_ns;
  if (thread.enqueues) return;
  const int64_t now_ns = real_ns();
  if (thread.last_call_real_ns != 0) clock.now_ns += now_ns - thread.last_call_real_ns;
  thread.last_call_real_ns = now_ns;
}

void make_context(int device) {
  if (runtime().contexts.contains(device)) return;
  runtime().contexts[device] = true;
  memory_of(device);
}

// FAKE_CUDA_FAIL_AFTER calls of FAKE_CUDA_FAIL_CALL; without a name launches are counted.
void inject_at_call(const char* name, uint64_t calls) {
  const int64_t after = settings().fail_after;
  if (after < 0 || settings().fail_call != name) return;
  if (calls > static_cast<uint64_t>(after) && runtime().injected == cudaSuccess) {
    runtime().injected = static_cast<cudaError_t>(settings().fail_error);
  }
}

// Who hears of a lost context may unmap what copies used: those under way come to their end first.
// Not a collective, which may wait for a rank that this very call would have told.
void await_works_under_way() {
  constexpr std::chrono::milliseconds kLongestCopy{200};
  Lock lock(runtime().mutex, std::adopt_lock);
  runtime().progressed.wait_for(lock, kLongestCopy, [] { return runtime().running == 0; });
  lock.release();
}

}  // namespace

void begin_question(const char* name) { ++runtime().counters.calls[name]; }

cudaError_t begin_call(const char* name) {
  inject_at_call(name, ++runtime().counters.calls[name]);
  take_time();
  if (runtime().injected != cudaSuccess) {
    await_works_under_way();
    return runtime().injected;
  }
  make_context(this_thread().device);
  return cudaSuccess;
}

cudaError_t remember(cudaError_t outcome) {
  if (outcome != cudaSuccess) this_thread().last_error = outcome;
  return outcome;
}

void count_launch() {
  const int64_t after = settings().fail_after;
  const auto launches = static_cast<int64_t>(++runtime().counters.launches);
  if (after < 0 || !settings().fail_call.empty() || launches < after) return;
  // As of a kernel that goes wrong: it was launched, and whatever is called next fails.
  if (runtime().injected == cudaSuccess) {
    runtime().injected = static_cast<cudaError_t>(settings().fail_error);
  }
}

}  // namespace fake_cuda
