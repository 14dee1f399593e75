#include "client/cuda/cuda_device.h"

#include <cstring>
#include <utility>

#include "base/throw_error.h"
#include "base/units.h"

namespace elixir {
namespace {

constexpr size_t kAlignBytes = 512;  // what torch's allocator rounds to

template <typename Call>
auto torch_call(std::string_view what, Call&& call) {
  try {
    return call();
  } catch (const Error& failure) {
    throw Error(error(Code::kInternal, "torch failed to {}: {}", what, failure.what()));
  }
}

}  // namespace

CudaDevice::CudaDevice(std::unique_ptr<CudaDriver> driver, int index, uint64_t memory_limit_bytes)
    : driver_(std::move(driver)), index_(index), memory_limit_bytes_(memory_limit_bytes) {
  make_current();
  size_t free_bytes = 0, total_bytes = 0;
  check(driver_->memory_info(&free_bytes, &total_bytes), "ask for the device's memory");
  if (memory_limit_bytes_ >= total_bytes) memory_limit_bytes_ = 0;  // no limit beyond the device's
  if (memory_limit_bytes_ != 0) {
    const double fraction =
        static_cast<double>(memory_limit_bytes_) / static_cast<double>(total_bytes);
    torch_call("limit its memory", [&] { driver_->limit_memory(index_, fraction); });
  }
  for (int i = 1; i < kStreams; ++i) {
    torch_call("make a stream", [&] { own_streams_.push_back(driver_->pool_stream(index_)); });
  }
}

CudaDevice::~CudaDevice() {
  // What is left may be in use by the device. Errors have nobody to go to any more: the process
  // ends, or whoever made them has thrown.
  (void)driver_->synchronize_device();
  for (const auto& [host, bytes] : pinned_) (void)driver_->host_unregister(host);
  for (void* host : host_memory_) (void)driver_->host_free(host);
  for (const CudaEvent event : events_) (void)driver_->destroy_event(event);
  try {
    for (void* memory : memory_) driver_->free(memory);
    if (memory_limit_bytes_ != 0) driver_->limit_memory(index_, 1.0);
  } catch (const Error&) {  // nor has torch's
  }
  (void)driver_->take_error();
}

Status CudaDevice::status_of(CudaResult result, std::string_view what) {
  if (result == CudaResult::kSuccess) return Status();
  // Else torch's next check of a kernel launch would find it and blame the kernel.
  (void)driver_->take_error();
  return cuda_status(result, driver_->error_text(result), driver_->error_name(result), what);
}

void CudaDevice::check(CudaResult result, std::string_view what) {
  if (result != CudaResult::kSuccess) throw Error(status_of(result, what));
}

void CudaDevice::make_current() {
  torch_call("start CUDA", [&] { driver_->use_device(index_); });
}

TorchStream CudaDevice::torch_stream(Stream stream) {
  if (stream == Stream::kCompute) return compute_stream();
  return own_streams_[static_cast<size_t>(stream) - 1];
}

// Blocks know one kCompute: an operator of the stream before may be reading what is filled next, or
// have made what is read next.
TorchStream CudaDevice::compute_stream() {
  const TorchStream current = driver_->current_stream(index_);
  if (compute_stream_ == current) return current;
  if (compute_stream_) {
    if (!handed_over_) handed_over_ = create_event();
    const CudaEvent event = cuda_event(*handed_over_);
    check(driver_->record(event, driver_->handle(*compute_stream_)), "record an event");
    check(driver_->wait(driver_->handle(current), event), "let a stream wait");
  }
  compute_stream_ = current;
  return current;
}

CudaEvent CudaDevice::cuda_event(DeviceEvent event) const {
  const MutexLock lock(events_mutex_);
  ELIXIR_CHECK(event.index < events_.size(), "event {} of {}", event.index, events_.size());
  return events_[event.index];
}

// ---- at the start ----

void CudaDevice::check_limit(size_t bytes, const char* what, const char* remedy) const {
  if (memory_limit_bytes_ == 0 || allocated_bytes_ + bytes <= memory_limit_bytes_) return;
  throw Error(error(Code::kResourceExhausted,
                    "{} needs {} beyond the {} that Elixir holds on the device, and the limit is "
                    "{}: {}",
                    what, format_bytes(bytes), format_bytes(allocated_bytes_),
                    format_bytes(memory_limit_bytes_), remedy));
}

std::byte* CudaDevice::allocate_from_torch(size_t bytes, const char* what, const char* remedy) {
  std::string reason;
  try {
    return static_cast<std::byte*>(driver_->allocate(bytes));
  } catch (const Error& failure) {
    if (failure.code() != Code::kResourceExhausted) {
      throw Error(error(Code::kInternal, "torch failed to allocate {} for {}: {}",
                        format_bytes(bytes), what, failure.what()));
    }
    reason = failure.what();
  }
  (void)driver_->take_error();
  size_t free_bytes = 0, total_bytes = 0;
  check(driver_->memory_info(&free_bytes, &total_bytes), "ask for the device's memory");
  throw Error(
      error(Code::kResourceExhausted,
            "{} needs {} on the device; of its {}, {} are free{}; Elixir holds {}: {} (torch: {})",
            what, format_bytes(bytes), format_bytes(total_bytes), format_bytes(free_bytes),
            memory_limit_bytes_ == 0
                ? ""
                : fmt::format(" under a limit of {}", format_bytes(memory_limit_bytes_)),
            format_bytes(allocated_bytes_), remedy, reason));
}

std::byte* CudaDevice::allocate(size_t bytes, const char* what, const char* remedy) {
  const size_t rounded_bytes = round_up(bytes, kAlignBytes);
  check_limit(rounded_bytes, what, remedy);
  std::byte* memory = allocate_from_torch(rounded_bytes, what, remedy);
  memory_.push_back(memory);
  allocated_bytes_ += rounded_bytes;
  // Every stream may use it at once, and torch's memory may be in use still by work enqueued
  // before.
  check(driver_->zero(memory, rounded_bytes, cuda_stream(Stream::kCompute)), "zero new memory");
  check(driver_->synchronize_device(), "zero new memory");
  return memory;
}

std::byte* CudaDevice::allocate_host(size_t bytes, const char* what) {
  void* memory = nullptr;
  const CudaResult result = driver_->host_allocate(&memory, bytes);
  if (result == CudaResult::kMemoryAllocation) {
    (void)driver_->take_error();
    throw Error(error(Code::kResourceExhausted,
                      "cannot page-lock {} of host memory for {}: run with ulimit -l unlimited, in "
                      "a container with --ulimit memlock=-1, and give its cgroup more memory",
                      format_bytes(bytes), what));
  }
  check(result, "allocate page-locked host memory");
  host_memory_.push_back(memory);
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

DeviceEvent CudaDevice::create_event() {
  CudaEvent event = nullptr;
  check(driver_->create_event(&event), "create an event");
  const MutexLock lock(events_mutex_);
  events_.push_back(event);
  return {static_cast<uint32_t>(events_.size() - 1)};
}

Status CudaDevice::pin(const std::byte* host, size_t bytes) {
  ELIXIR_CHECK(bytes > 0, "no bytes");
  const CudaResult result = driver_->host_register(host, bytes);
  if (result == CudaResult::kSuccess) {
    pinned_[host] = bytes;
    return Status();
  }
  (void)driver_->take_error();
  const Code code =
      result == CudaResult::kMemoryAllocation ? Code::kResourceExhausted : Code::kInternal;
  return error(
      code,
      "cannot page-lock {} of host memory: {} ({}); copies of it go through a buffer of CUDA's, "
      "slower, and the trainer waits for them; allow it with ulimit -l unlimited, in a container "
      "with --ulimit memlock=-1, and more memory for its cgroup; elixirctl doctor tries it",
      format_bytes(bytes), driver_->error_text(result), driver_->error_name(result));
}

void CudaDevice::unpin(const std::byte* host) {
  if (pinned_.erase(host) == 0) return;  // it was refused
  // A failure changes nothing for the caller, who is about to unmap it and may be a destructor.
  if (driver_->host_unregister(host) != CudaResult::kSuccess) (void)driver_->take_error();
}

// ---- enqueued ----

void CudaDevice::transfer(Stream stream, Stream direction, void* to, const void* from,
                          size_t bytes) {
  const bool up = direction == Stream::kUpload;
  const CudaStream on = cuda_stream(stream);
  CudaSpans::Begin begin;
  check(spans_.begin(on, &begin), "time a copy");
  check(driver_->copy(to, from, bytes, up ? CopyKind::kHostToDevice : CopyKind::kDeviceToHost, on),
        up ? "copy to the device" : "copy from the device");
  check(spans_.end(on, begin, direction, bytes), "time a copy");
}

void CudaDevice::upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) {
  transfer(stream, Stream::kUpload, device, host, bytes);
  h2d_bytes_ += bytes;
}

void CudaDevice::download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) {
  transfer(stream, Stream::kDownload, host, device, bytes);
  d2h_bytes_ += bytes;
}

void CudaDevice::copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
  check(driver_->copy(to, from, bytes, CopyKind::kDeviceToDevice, cuda_stream(stream)),
        "copy on the device");
}

void CudaDevice::zero(Stream stream, std::byte* device, size_t bytes) {
  check(driver_->zero(device, bytes, cuda_stream(stream)), "zero memory of the device");
}

void CudaDevice::update(Stream stream, const optim::UpdateSpan& span, const optim::AdamStep& step) {
  throw_if_error(driver_->update(span, step, cuda_stream(stream)));
}

void CudaDevice::squared_norm(Stream stream, ComputeType type, const std::byte* values,
                              size_t numel, std::byte* result) {
  throw_if_error(driver_->squared_norm(type, values, numel, reinterpret_cast<NormSum*>(result),
                                       cuda_stream(stream)));
}

void CudaDevice::sum_gradients(Stream stream, ComputeType type, const std::byte* grads,
                               size_t numel, float* sums, bool begins) {
  torch_call("add gradients", [&] {
    driver_->sum_gradients(torch_stream(stream), type, grads, numel, sums, begins);
  });
}

std::optional<TorchStream> CudaDevice::begin_collective(Stream stream) {
  if (stream == Stream::kCompute) return std::nullopt;  // it is the current one
  CudaSpans::Begin& begin = collective_begins_[static_cast<size_t>(stream)];
  if (begin.event == nullptr && (stream == Stream::kGather || stream == Stream::kReduce)) {
    check(spans_.begin(cuda_stream(stream), &begin), "time a collective");
  }
  return torch_stream(stream);
}

// ---- order ----

void CudaDevice::record(DeviceEvent event, Stream stream) {
  CudaSpans::Begin& begin = collective_begins_[static_cast<size_t>(stream)];
  check(spans_.end(cuda_stream(stream), std::exchange(begin, {}), stream, 0), "time a collective");
  check(driver_->record(cuda_event(event), cuda_stream(stream)), "record an event");
}

void CudaDevice::wait(Stream stream, DeviceEvent event) {
  check(driver_->wait(cuda_stream(stream), cuda_event(event)), "let a stream wait");
}

bool CudaDevice::done(DeviceEvent event) {
  const CudaResult result = driver_->query(cuda_event(event));
  if (result == CudaResult::kNotReady) {
    (void)driver_->take_error();  // the runtime keeps this answer as an error, too
    return false;
  }
  check(result, "ask whether work is done");
  return true;
}

void CudaDevice::synchronize(DeviceEvent event) {
  check(driver_->synchronize(cuda_event(event)), "wait for the device");
}

void CudaDevice::begin_operator(const char* name) {
  bool capturing = false;
  check(driver_->is_capturing(cuda_stream(Stream::kCompute), &capturing),
        "ask whether a stream is captured");
  if (!capturing) return;
  throw Error(error(Code::kInvalidArgument,
                    "{} reads a parameter while a CUDA graph is being captured: parameters come to "
                    "other addresses in every step, which the graph would not know; run the model "
                    "without capturing it, or capture parts that read no parameters",
                    name));
}

uint64_t CudaDevice::peak_bytes() {
  return torch_call("tell its memory", [&] { return driver_->peak_bytes(index_); });
}

// ---- times ----

void CudaDevice::operators_run() {
  if (spans_.operators_running()) return;  // most operators end here
  check(spans_.operators_run(cuda_stream(Stream::kCompute)), "time operators");
}

bool CudaDevice::operators_wait() {
  bool ran = false;
  check(spans_.operators_wait(cuda_stream(Stream::kCompute), &ran), "time operators");
  return ran;
}

void CudaDevice::operators_end(uint32_t step) {
  check(spans_.operators_end(cuda_stream(Stream::kCompute), step), "time operators");
  if (!step_ended_) step_ended_ = create_event();
  record(*step_ended_, Stream::kCompute);
  wait(Stream::kDownload, *step_ended_);
}

std::optional<OperatorTimes> CudaDevice::take_operator_times() {
  collect_spans();
  return spans_.take_operator_times();
}

void CudaDevice::time_copies() {
  if (spans_.on()) return;
  CudaStream idle = nullptr;
  torch_call("make a stream", [&] { idle = driver_->handle(driver_->pool_stream(index_)); });
  check(spans_.start(idle), "ask for the device's time");
}

void CudaDevice::keep_spans() {
  time_copies();
  log_.keep_spans();
}

std::vector<StreamSpan> CudaDevice::take_spans() {
  collect_spans();
  return log_.take_spans();
}

LinkTimes CudaDevice::link_times() {
  collect_spans();
  return log_.link_times();
}

}  // namespace elixir
