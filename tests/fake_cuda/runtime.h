#pragma once

// Streams, events, and the order and virtual time of enqueued work.
//
// A work's start, its end and its place in the order are known when it is enqueued: they follow
// from the calls made before. A thread for each stream does the works later, in the stream's order.
// So unordered works really happen in any order.

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/fake_cuda/counters.h"
#include "tests/fake_cuda/order.h"

namespace fake_cuda {

using Lock = std::unique_lock<std::mutex>;

enum class WorkKind { kKernel, kElixirKernel, kGemm, kH2d, kD2h, kD2d, kMemset, kOther };
inline constexpr int kWorkKinds = 8;

struct Access {
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool writes = false;
};

struct Work {
  const char* name = "";  // lives as long as the program
  WorkKind kind = WorkKind::kOther;
  int64_t duration_ns = 0;
  std::vector<Access> accesses = {};
  std::function<void()> run = {};  // may be empty
};

struct Stream;

struct Event {
  int device = 0;
  bool timed = false, destroyed = false;
  int stream = 0;         // the stream of its last record
  uint64_t recorded = 0;  // number of records
  uint64_t done = 0;      // the last record that is reached
  int64_t end_ns = 0;     // end of the last record, virtual
  Order order;            // the last record's
  uint64_t not_ready_in_a_row = 0;
};

// The next action of a stream's thread: it waits for an event, runs a work, or reaches an event's
// record.
struct Operation {
  std::function<void()> run = {};
  Event* waits_for = nullptr;
  Event* records = nullptr;
  uint64_t record = 0;  // number of the record
};

struct StreamCounters {
  uint64_t works[kWorkKinds] = {};
  int64_t busy_ns[kWorkKinds] = {};
  int64_t first_ns = -1, last_ns = 0;
  uint64_t event_records = 0, event_waits = 0;
};

struct Stream {
  int number = 0, device = 0;
  bool destroyed = false;
  bool blocking = false;  // this stream and the default stream wait for each other
  std::deque<Operation> queue;
  uint64_t enqueued = 0, done = 0;
  bool has_thread = false;
  std::condition_variable filled;
  int64_t end_ns = 0;  // end of all enqueued work, virtual
  Order order;         // order of the next work
  uint64_t works = 0;
  StreamCounters counters;

  bool idle() const { return done == enqueued; }
};

// One per process, never destroyed. `mutex` guards all of it.
struct Runtime {
  std::mutex mutex;
  std::condition_variable progressed;  // some stream progressed
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::map<int, Stream*> default_streams;  // by device
  // Threads that enqueue work share one clock: they take turns, and tell each other in ways that
  // the fake cannot see. A thread that only waits has its own.
  HostClock enqueuers;
  VectorClock any_host;  // works that any thread has waited for
  cudaError_t injected = cudaSuccess;
  int running = 0;               // works that streams are doing now
  std::map<int, bool> contexts;  // by device
  Counters counters;
};
Runtime& runtime();

// The state of a host thread.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool enqueues = false;
  HostClock own;
  int64_t last_call_real_ns = 0;
};
ThreadState& this_thread();
HostClock& host_clock();  // the calling thread's

// The functions below REQUIRE the runtime's mutex; those with a Lock may release it while they
// wait.

Stream* new_stream(int device, bool blocking);
// Null for an invalid handle or a destroyed stream.
Stream* find_stream(cudaStream_t handle);
Event* find_event(cudaEvent_t handle);

void enqueue(Stream& stream, Work work);
void record_event(Stream& stream, Event& event);
void wait_for_event(Stream& stream, Event& event);

// The calling thread waits; `call` is the name of the waiting function.
void wait_for_stream(Lock& lock, Stream& stream, const char* call);
void wait_for_device(Lock& lock, int device, const char* call);
void wait_for_record(Lock& lock, Event& event, const char* call);

// Whether the calling thread finds it done at its virtual time.
bool find_done(Event& event);
bool find_idle(Stream& stream);

}  // namespace fake_cuda
