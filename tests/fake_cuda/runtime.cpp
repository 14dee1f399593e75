#include "tests/fake_cuda/runtime.h"

#include <algorithm>

#include "tests/fake_cuda/races.h"
#include "tests/fake_cuda/settings.h"
#include "tests/fake_cuda/stream_thread.h"

namespace fake_cuda {
namespace {

// A thread that asks so often for one event without a pause waits for it.
constexpr uint64_t kQueriesOfAWait = 1000;

void push(Stream& stream, Operation operation) {
  stream.queue.push_back(std::move(operation));
  ++stream.enqueued;
  start_thread(stream);
  stream.filled.notify_one();
}

// The host has seen all of `order` done, at `end_ns`.
void learn(const Order& order, int64_t end_ns) {
  HostClock& clock = host_clock();
  clock.now_ns = std::max(clock.now_ns, end_ns);
  clock.order.join(order);
  runtime().any_host.join(order.host);
}

// What is enqueued on `later` from here on comes after all that is on `earlier`.
void order_after(Stream& later, Stream& earlier) {
  later.order.join(earlier.order);
  later.end_ns = std::max(later.end_ns, earlier.end_ns);
  if (earlier.idle()) return;
  runtime().events.push_back(std::make_unique<Event>());
  Event* const reached = runtime().events.back().get();
  reached->recorded = 1;
  push(earlier, {.records = reached, .record = 1});
  push(later, {.waits_for = reached, .record = 1});
}

// The default stream and those that were made as blocking: before anything is enqueued.
void keep_default_order(Stream& stream) {
  Stream* const default_stream = runtime().default_streams[stream.device];
  if (stream.blocking && default_stream != nullptr) order_after(stream, *default_stream);
  if (&stream != default_stream) return;
  for (const auto& other : runtime().streams) {
    if (other->blocking && other->device == stream.device) order_after(stream, *other);
  }
}

void wait_until_idle(Lock& lock, const Stream& stream) {
  const uint64_t enqueued = stream.enqueued;
  runtime().progressed.wait(lock, [&] { return stream.done >= enqueued; });
}

}  // namespace

Runtime& runtime() {
  static auto* const instance = new Runtime;
  return *instance;
}

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

HostClock& host_clock() { return this_thread().enqueues ? runtime().enqueuers : this_thread().own; }

Stream* new_stream(int device, bool blocking) {
  auto& streams = runtime().streams;
  streams.push_back(std::make_unique<Stream>());
  Stream* const stream = streams.back().get();
  stream->number = static_cast<int>(streams.size()) - 1;
  stream->device = device;
  stream->blocking = blocking;
  return stream;
}

Stream* find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    Stream*& stream = runtime().default_streams[this_thread().device];
    if (stream == nullptr) stream = new_stream(this_thread().device, false);
    return stream;
  }
  for (const auto& stream : runtime().streams) {
    if (reinterpret_cast<cudaStream_t>(stream.get()) == handle) {
      return stream->destroyed ? nullptr : stream.get();
    }
  }
  return nullptr;
}

Event* find_event(cudaEvent_t handle) {
  auto* const event = reinterpret_cast<Event*>(handle);
  return event == nullptr || event->destroyed ? nullptr : event;
}

void enqueue(Stream& stream, Work work) {
  ThreadState& thread = this_thread();
  if (!thread.enqueues) {
    thread.enqueues = true;
    runtime().enqueuers.order.join(thread.own.order);  // its time went with the real one
  }
  keep_default_order(stream);
  const HostClock& host = runtime().enqueuers;
  stream.order.join(host.order);
  stream.order.host.join(runtime().any_host);
  stream.order.device.set(stream.number, ++stream.works);
  stream.order.host.set(stream.number, stream.works);
  check_accesses(stream, work);

  const int64_t start_ns = std::max(stream.end_ns, host.now_ns);
  stream.end_ns = start_ns + work.duration_ns;
  StreamCounters& counters = stream.counters;
  ++counters.works[static_cast<int>(work.kind)];
  counters.busy_ns[static_cast<int>(work.kind)] += work.duration_ns;
  if (counters.first_ns < 0) counters.first_ns = start_ns;
  counters.last_ns = stream.end_ns;

  if (!work.run && settings().delay_ns == 0 && stream.idle()) return;  // done
  push(stream, {.run = work.run ? std::move(work.run) : [] {}});
}

void record_event(Stream& stream, Event& event) {
  keep_default_order(stream);
  const HostClock& host = host_clock();
  stream.order.join(host.order);
  stream.end_ns = std::max(stream.end_ns, host.now_ns);
  ++stream.counters.event_records;
  event.stream = stream.number;
  event.end_ns = stream.end_ns;
  event.order = stream.order;
  ++event.recorded;
  if (stream.idle()) {
    event.done = event.recorded;
    runtime().progressed.notify_all();
    return;
  }
  push(stream, {.records = &event, .record = event.recorded});
}

void wait_for_event(Stream& stream, Event& event) {
  ++stream.counters.event_waits;
  if (event.recorded == 0) return;
  stream.order.join(event.order);
  stream.end_ns = std::max(stream.end_ns, event.end_ns);
  if (event.done >= event.recorded) return;
  push(stream, {.waits_for = &event, .record = event.recorded});
}

void wait_for_stream(Lock& lock, Stream& stream, const char* call) {
  ++runtime().counters.host_waits[{call, stream.number}];
  const Order order = stream.order;
  const int64_t end_ns = stream.end_ns;
  wait_until_idle(lock, stream);
  learn(order, end_ns);
}

void wait_for_device(Lock& lock, int device, const char* call) {
  ++runtime().counters.host_waits[{call, -1}];
  for (size_t i = 0; i < runtime().streams.size(); ++i) {
    Stream& stream = *runtime().streams[i];
    if (stream.device != device) continue;
    const Order order = stream.order;
    const int64_t end_ns = stream.end_ns;
    wait_until_idle(lock, stream);
    learn(order, end_ns);
  }
}

void wait_for_record(Lock& lock, Event& event, const char* call) {
  if (event.recorded == 0) return;
  ++runtime().counters.host_waits[{call, event.stream}];
  const Order order = event.order;
  const int64_t end_ns = event.end_ns;
  const uint64_t record = event.recorded;
  runtime().progressed.wait(lock, [&] { return event.done >= record; });
  learn(order, end_ns);
}

bool find_done(Event& event) {
  if (event.recorded == 0) return true;
  HostClock& clock = host_clock();
  if (event.done < event.recorded) return false;
  if (clock.now_ns < event.end_ns && ++event.not_ready_in_a_row < kQueriesOfAWait) return false;
  event.not_ready_in_a_row = 0;
  learn(event.order, event.end_ns);
  return true;
}

bool find_idle(Stream& stream) {
  if (!stream.idle() || host_clock().now_ns < stream.end_ns) return false;
  learn(stream.order, stream.end_ns);
  return true;
}

}  // namespace fake_cuda
