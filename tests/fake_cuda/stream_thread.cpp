#include "tests/fake_cuda/stream_thread.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

// Signals are the program's own threads' business, but not those that a fault of this thread makes.
void leave_signals_to_others() {
  sigset_t all;
  sigfillset(&all);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, signal);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

void serve(Stream* stream) {
  leave_signals_to_others();
  pthread_setname_np(pthread_self(), ("fakegpu_" + std::to_string(stream->number)).c_str());
  std::mt19937_64 random(settings().seed * 1000003 + static_cast<uint64_t>(stream->number));
  const auto delay = [&] {
    const int64_t most_ns = settings().delay_ns;
    if (most_ns == 0) return;
    // cannot fail by chance: a stream may be as late as it likes.
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(random() % static_cast<uint64_t>(most_ns)));
  };
  Lock lock(runtime().mutex);
  for (;;) {
    stream->filled.wait(lock, [&] { return !stream->queue.empty(); });
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (operation.waits_for != nullptr) {
      const Event& event = *operation.waits_for;
      runtime().progressed.wait(lock, [&] { return event.done >= operation.record; });
    }
    // A device whose context is lost does nothing any more.
    if (operation.run && runtime().injected == cudaSuccess) {
      ++runtime().running;
      lock.unlock();
      delay();
      operation.run();
      lock.lock();
      --runtime().running;
    }
    if (operation.records != nullptr) {
      operation.records->done = std::max(operation.records->done, operation.record);
    }
    ++stream->done;
    runtime().progressed.notify_all();
  }
}

}  // namespace

void start_thread(Stream& stream) {
  if (stream.has_thread) return;
  stream.has_thread = true;
  std::thread(serve, &stream).detach();
}

}  // namespace fake_cuda
