#include "tests/client/lazy_cuda_driver.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/throw_error.h"
#include "kernels/alignment.h"
#include "optim_cpu/gradients.h"

namespace elixir {

int LazyCudaDriver::Record::stream_of_last(const std::string& name) const {
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (call->name == name) return call->stream;
  }
  return -1;
}

int LazyCudaDriver::Record::count(const std::string& name) const {
  return static_cast<int>(
      std::count_if(calls.begin(), calls.end(), [&](const Call& c) { return c.name == name; }));
}

// A null handle is CUDA's default stream: streams start at 1 in their handles.
int LazyCudaDriver::number(CudaStream stream) {
  return static_cast<int>(reinterpret_cast<intptr_t>(stream)) - 1;
}
size_t LazyCudaDriver::number(CudaEvent event) { return reinterpret_cast<size_t>(event) - 1; }

CudaResult LazyCudaDriver::note(const std::string& name, int stream) {
  record_->calls.push_back({name, stream});
  const auto failure = failures_.find(name);
  if (failure == failures_.end()) return CudaResult::kSuccess;
  const CudaResult result = failure->second;
  failures_.erase(failure);
  record_->pending_error = result;
  return result;
}

CudaResult LazyCudaDriver::enqueue(const std::string& name, CudaStream stream,
                                   std::function<void()> work) {
  const CudaResult result = note(name, number(stream));
  if (result == CudaResult::kSuccess) queues_[number(stream)].work.push_back(std::move(work));
  return result;
}

void LazyCudaDriver::run_until(const Point& point) {
  if (point.stream < 0) return;
  Queue& queue = queues_[point.stream];
  while (queue.done < point.position) {
    const auto work = queue.work[queue.done];
    work();  // a wait among them runs other streams first
    ++queue.done;
  }
}

// ---- torch ----

void LazyCudaDriver::use_device(int) {
  if (note("use_device") == CudaResult::kSuccess) return;
  throw Error(Status(Code::kInternal, "the fake has no driver"));
}

void LazyCudaDriver::limit_memory(int, double fraction) { record_->memory_fraction = fraction; }

void* LazyCudaDriver::allocate(size_t bytes) {
  if (note("allocate") != CudaResult::kSuccess) {
    throw Error(Status(Code::kResourceExhausted, "the fake is out of memory"));
  }
  auto memory = std::make_unique<std::byte[]>(bytes);
  std::memset(memory.get(), 0xcd, bytes);
  void* address = memory.get();
  memory_[address] = std::move(memory);
  ++record_->live_memory;
  return address;
}

void LazyCudaDriver::free(void* memory) {
  note("free");
  memory_.erase(memory);
  --record_->live_memory;
}

TorchStream LazyCudaDriver::pool_stream(int index) { return {++pool_streams_, index, 0}; }

TorchStream LazyCudaDriver::current_stream(int index) { return {current_stream_, index, 0}; }

CudaStream LazyCudaDriver::handle(const TorchStream& stream) {
  return reinterpret_cast<CudaStream>(stream.id + 1);
}

void LazyCudaDriver::sum_gradients(const TorchStream& stream, ComputeType type, const void* grads,
                                   size_t numel, float* sums, bool begins) {
  (void)enqueue("sum_gradients", handle(stream), [=] {
    optim::take_gradients(
        optim::Isa::kScalar,
        {.type = type, .grads = &grads, .grad_sum = sums, .begins_sum = begins, .numel = numel},
        nullptr);
  });
}

// ---- CUDA's runtime ----

CudaResult LazyCudaDriver::memory_info(size_t* free_bytes, size_t* total) {
  *free_bytes = total_bytes / 4;
  *total = total_bytes;
  return note("memory_info");
}

CudaResult LazyCudaDriver::host_register(const void* host, size_t) {
  const CudaResult result = note("host_register");
  if (result == CudaResult::kSuccess) record_->registered.insert(host);
  return result;
}

CudaResult LazyCudaDriver::host_unregister(const void* host) {
  const CudaResult result = note("host_unregister");
  record_->registered.erase(host);
  return result;
}

CudaResult LazyCudaDriver::host_allocate(void** host, size_t bytes) {
  const CudaResult result = note("host_allocate");
  if (result != CudaResult::kSuccess) return result;
  *host = allocate(bytes);
  --record_->live_memory;  // of the device
  ++record_->live_host_memory;
  return result;
}

CudaResult LazyCudaDriver::host_free(void* host) {
  const CudaResult result = note("host_free");
  memory_.erase(host);
  --record_->live_host_memory;
  return result;
}

CudaResult LazyCudaDriver::create_event(CudaEvent* event) {
  const CudaResult result = note("create_event");
  if (result != CudaResult::kSuccess) return result;
  events_.emplace_back();
  ++record_->live_events;
  *event = reinterpret_cast<CudaEvent>(events_.size());
  return result;
}

CudaResult LazyCudaDriver::create_timed_event(CudaEvent* event) {
  const CudaResult result = create_event(event);
  if (result == CudaResult::kSuccess) times_ms_[number(*event)] = NAN;
  return result;
}

CudaResult LazyCudaDriver::destroy_event(CudaEvent) {
  --record_->live_events;
  return note("destroy_event");
}

CudaResult LazyCudaDriver::record(CudaEvent event, CudaStream stream) {
  std::vector<std::function<void()>>& work = queues_[number(stream)].work;
  const auto time = times_ms_.find(number(event));
  if (time != times_ms_.end()) {
    time->second = NAN;
    work.push_back([this, time] { time->second = clock_ms_; });
  }
  events_[number(event)] = {number(stream), work.size()};
  return note("record", number(stream));
}

CudaResult LazyCudaDriver::wait(CudaStream stream, CudaEvent event) {
  const Point point = events_[number(event)];  // as it is now, whatever is recorded later
  return enqueue("wait", stream, [this, point] { run_until(point); });
}

CudaResult LazyCudaDriver::is_capturing(CudaStream stream, bool* answer) {
  *answer = capturing;
  return note("is_capturing", number(stream));
}

CudaResult LazyCudaDriver::query(CudaEvent event) {
  const CudaResult result = note("query");
  if (result != CudaResult::kSuccess) return result;
  const Point point = events_[number(event)];
  if (point.stream < 0 || queues_[point.stream].done >= point.position) return result;
  record_->pending_error = CudaResult::kNotReady;  // as CUDA does
  return CudaResult::kNotReady;
}

CudaResult LazyCudaDriver::synchronize(CudaEvent event) {
  run_until(events_[number(event)]);
  return note("synchronize");
}

CudaResult LazyCudaDriver::elapsed(float* milliseconds, CudaEvent begin, CudaEvent end) {
  const double length_ms = times_ms_.at(number(end)) - times_ms_.at(number(begin));
  if (std::isnan(length_ms)) return CudaResult::kNotReady;
  *milliseconds = static_cast<float>(length_ms);
  return note("elapsed");
}

CudaResult LazyCudaDriver::synchronize_device() {
  for (auto& [stream, queue] : queues_) run_until({stream, queue.work.size()});
  return note("synchronize_device");
}

CudaResult LazyCudaDriver::copy(void* to, const void* from, size_t bytes, CopyKind kind,
                                CudaStream stream) {
  const char* names[] = {"copy_h2d", "copy_d2h", "copy_d2d"};
  return enqueue(names[static_cast<int>(kind)], stream, [this, to, from, bytes] {
    std::memcpy(to, from, bytes);
    clock_ms_ += static_cast<double>(bytes);
  });
}

CudaResult LazyCudaDriver::zero(void* device, size_t bytes, CudaStream stream) {
  return enqueue("zero", stream, [device, bytes] { std::memset(device, 0, bytes); });
}

CudaResult LazyCudaDriver::take_error() {
  return std::exchange(record_->pending_error, CudaResult::kSuccess);
}

Status LazyCudaDriver::update(const optim::UpdateSpan& span, const optim::AdamStep& step,
                              CudaStream stream) {
  const int n_grads = span.grad_sum == nullptr ? span.n_grads : 0;
  const std::vector<const void*> grads(span.grads, span.grads + n_grads);
  const CudaResult result = enqueue("update", stream, [span, step, grads] {
    optim::UpdateSpan late = span;
    late.grads = grads.data();
    optim::adam_update(optim::Isa::kScalar, late, step);
  });
  return result == CudaResult::kSuccess ? Status()
                                        : Status(Code::kInternal, "the fake refused the kernel");
}

Status LazyCudaDriver::squared_norm(ComputeType type, const void* values, size_t numel,
                                    NormSum* result, CudaStream stream) {
  kernels::check_norm_pointers(values, result);
  const CudaResult outcome = enqueue("squared_norm", stream, [=] {
    *result = {};
    optim::take_gradients(optim::Isa::kScalar, {.type = type, .grads = &values, .numel = numel},
                          result);
  });
  return outcome == CudaResult::kSuccess ? Status()
                                         : Status(Code::kInternal, "the fake refused the norm");
}

}  // namespace elixir
