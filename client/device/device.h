#pragma once

// Where a trainer computes: its memory, its streams, its link to the host.
//
// Work is enqueued and runs later, in order on each stream; streams are ordered among each other by
// events alone, exactly as in CUDA. HostDevice, whose work is done when a call returns unless it
// plays a link, fulfils the same contract. Used by the thread that runs the model and by autograd's
// thread while that one waits in backward(); done() and synchronize() by any other at the same
// time, and what is enqueued on the swing streams, and events that are recorded there, by one
// thread more. No other stream waits for these. Calls that can fail throw elixir::Error.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "client/device/stream.h"
#include "optim_cpu/adam.h"

namespace elixir {

// A point in a stream's work. Made once, recorded many times: a wait means the latest record before
// it. An event never recorded is done.
struct DeviceEvent {
  uint32_t index = 0;
};

// A stream of LibTorch's, as c10::Stream::pack3() has it: here nothing of LibTorch is known, and
// client/torch_device/torch_stream.h makes one of it.
struct TorchStream {
  int64_t id = 0, device_index = 0, device_type = 0;

  bool operator==(const TorchStream&) const = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual int cuda_index() const { return -1; }  // as CUDA numbers devices; -1: the CPU

  // By a thread that is not the one that made the Device, before its first other call: CUDA would
  // make a context on the device that such a thread begins with, the first one.
  virtual void make_current() {}

  // Copies are done when a call returns, and a small one costs no more a byte than a large one: so
  // gradients go to the host from where autograd has them, one by one.
  virtual bool copies_at_once() const { return false; }

  // ---- at the start ----

  // Memory of the device, aligned to 256 bytes, zeroed, kept until the Device ends. `what` and
  // `remedy` stand in the message. Throws kResourceExhausted when there is no room, also when the
  // limit given by Options::device_memory_bytes is reached.
  virtual std::byte* allocate(size_t bytes, const char* what, const char* remedy) = 0;

  // Host memory that is page-locked from the start, else as above. It may wait for the device.
  virtual std::byte* allocate_host(size_t bytes, const char* what) = 0;

  virtual DeviceEvent create_event() = 0;

  // Whether copies want page-locked memory on the host. Else pin() has nothing to do.
  virtual bool pins_host_memory() const = 0;
  // Page-locks host memory, so that copies run at the link's speed and behind the caller's back.
  // REQUIRES: it is mapped for writing, and, where several processes map it, shared (the driver
  // refuses other memory); afterwards the mapping may be protected against writes. No copy may
  // cross what two calls have page-locked; about kPinPieceBytes are enough for one. A refusal
  // leaves no error behind and copies of that memory still work, slower. unpin before unmapping.
  static constexpr size_t kPinPieceBytes = size_t{64} << 30;
  virtual Status pin(const std::byte* host, size_t bytes) = 0;
  virtual void unpin(const std::byte* host) = 0;

  // ---- enqueued on a stream; on the path of a step nothing here waits for the device ----

  virtual void upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual void download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual void copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual void zero(Stream stream, std::byte* device, size_t bytes) = 0;

  // Adam on device memory, with the bits of optim::adam_update. Pointers of the span are device
  // memory; the array span.grads itself is read before the call returns.
  virtual void update(Stream stream, const optim::UpdateSpan& span,
                      const optim::AdamStep& step) = 0;

  // The squares of gradients into one NormSum of device memory, replacing what it holds: with the
  // bits of optim::take_gradients. Every parameter in `values` begins at a multiple of
  // kNormLeafNumel elements.
  virtual void squared_norm(Stream stream, ComputeType type, const std::byte* values, size_t numel,
                            std::byte* result) = 0;

  // Adds a micro-step's gradients, `numel` of `type`, to their FP32 sums, or begins these with
  // them: the bits of optim::take_gradients.
  virtual void sum_gradients(Stream stream, ComputeType type, const std::byte* grads, size_t numel,
                             float* sums, bool begins) = 0;

  // A collective is enqueued next, or more of them until the stream is recorded, behind the stream
  // that LibTorch has as its current one: which that is to be; none: as it is.
  virtual std::optional<TorchStream> begin_collective(Stream stream) = 0;

  // ---- order ----

  virtual void record(DeviceEvent event, Stream stream) = 0;
  virtual void wait(Stream stream, DeviceEvent event) = 0;  // the stream waits, not the caller
  virtual bool done(DeviceEvent event) = 0;
  virtual void synchronize(DeviceEvent event) = 0;  // the caller waits

  // An operator that reads parameters is about to be enqueued. Throws kInvalidArgument where it
  // cannot be: into a CUDA graph that is being captured.
  virtual void begin_operator(const char* name) { (void)name; }
  // It has been enqueued, by the calling thread, and what comes on kCompute is behind it. Where a
  // HostDevice that plays a slower device takes its time.
  virtual void end_operator() {}

  // ---- when operators ran, where that is not when the host enqueued them ----

  // The host runs ahead of kCompute, whose times are the device's own: what follows tells them.
  // Else it does nothing, and the host's times are the operators'.
  virtual bool runs_behind_host() const { return false; }
  // Operators run on kCompute from here on, as long as nothing says that they wait. Asked for with
  // time_copies().
  virtual void operators_run() {}
  // Operators wait, from here to operators_run(), for what will be enqueued meanwhile. Whether they
  // ran before.
  virtual bool operators_wait() { return false; }
  // All operators of the step are enqueued; they wait from here on. What kDownload does next is
  // behind them: whoever sees its end may take their times.
  virtual void operators_end(uint32_t step) { (void)step; }
  // Of steps whose operators are done, oldest first, each once; of the last few. Waits for nothing.
  virtual std::optional<OperatorTimes> take_operator_times() { return std::nullopt; }

  // ---- counters, since construction; readable by any thread ----

  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  uint64_t allocated_bytes() const { return allocated_bytes_; }
  // The most device memory that LibTorch had in use at a time, what Elixir allocated included; 0
  // where nobody counts.
  virtual uint64_t peak_bytes() { return 0; }
  virtual LinkTimes link_times() = 0;
  // Asks for them where they cost something: on CUDA, two timing events a copy. They count from
  // here on, and are 0 before.
  virtual void time_copies() {}

  // For a trace: keeps when each copy ran, from here on, until it is taken. Implies time_copies().
  virtual void keep_spans() = 0;
  // Those that are done and were not taken before. On kCompute, where the device runs behind the
  // host: operators between two waits.
  virtual std::vector<StreamSpan> take_spans() = 0;

 protected:
  std::atomic<uint64_t> h2d_bytes_{0}, d2h_bytes_{0}, allocated_bytes_{0};
};

}  // namespace elixir
