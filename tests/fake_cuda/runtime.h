#pragma once

// Streams, events, and the order and virtual time of what is enqueued.
//
// A work's start and end, and what it is ordered after, are known when it is enqueued: they follow
// from the calls made before. A thread for each stream does the works later, in the same order, so
// that what is not ordered really happens in any order.

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
  int stream = 0;         // that it was recorded on last
  uint64_t recorded = 0;  // times
  uint64_t done = 0;      // the greatest record that is reached
  int64_t end_ns = 0;     // of the last record, virtual
  Order order;            // of the last record
  uint64_t not_ready_in_a_row = 0;
};

// What a stream's thread does next: waits for an event, runs a work, or reaches an event's record.
struct Operation {
  std::function<void()> run = {};
  Event* waits_for = nullptr;
  Event* records = nullptr;
  uint64_t record = 0;  // which
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
  bool blocking = false;  // it and the default stream wait for each other
  std::deque<Operation> queue;
  uint64_t enqueued = 0, done = 0;
  bool has_thread = false;
  std::condition_variable filled;
  int64_t end_ns = 0;  // of all that is enqueued, virtual
  Order order;         // of what is enqueued next
  uint64_t works = 0;
  StreamCounters counters;

  bool idle() const { return done == enqueued; }
};

// One a process, never destroyed. All of it is guarded by `mutex`.
struct Runtime {
  std::mutex mutex;
  std::condition_variable progressed;  // some stream
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::map<int, Stream*> default_streams;  // by device
  // Threads that enqueue work share one clock: they take turns, and tell each other by ways that
  // nobody sees here. A thread that only waits has its own.
  HostClock enqueuers;
  VectorClock any_host;  // what any thread has waited for
  cudaError_t injected = cudaSuccess;
  int running = 0;               // works that streams do just now
  std::map<int, bool> contexts;  // by device
  Counters counters;
};
Runtime& runtime();

// Of a host thread.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool enqueues = false;
  HostClock own;
  int64_t last_call_real_ns = 0;
};
ThreadState& this_thread();
HostClock& host_clock();  // the calling thread's

// The functions below REQUIRE the runtime's mutex; those with a Lock may let go of it meanwhile.

Stream* new_stream(int device, bool blocking);
// Null for a handle that is none, or of a destroyed stream.
Stream* find_stream(cudaStream_t handle);
Event* find_event(cudaEvent_t handle);

void enqueue(Stream& stream, Work work);
void record_event(Stream& stream, Event& event);
void wait_for_event(Stream& stream, Event& event);

// The calling thread waits; `call` names the function that does.
void wait_for_stream(Lock& lock, Stream& stream, const char* call);
void wait_for_device(Lock& lock, int device, const char* call);
void wait_for_record(Lock& lock, Event& event, const char* call);

// Whether the calling thread, at its virtual time, finds it done.
bool find_done(Event& event);
bool find_idle(Stream& stream);

}  // namespace fake_cuda
