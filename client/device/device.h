#pragma once

// The device on which a trainer computes: its memory, its streams, its link to the host.
//
// Work is enqueued and runs later, in order on each stream. Only events order streams among each
// other, exactly as in CUDA. HostDevice keeps the same contract: its work is done when a call
// returns, unless it emulates a link.
//
// Threads: The thread that runs the model makes the calls, or autograd's thread while the first
// waits in backward(). Any other thread may call done() and synchronize() at the same time. One
// more thread may enqueue on the swing streams and record events there; no other stream waits for
// these. Calls that can fail throw elixir::Error.

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

// A point in a stream's work. It is made once and recorded many times. A wait refers to the latest
// record before it; an event never recorded is done.
struct DeviceEvent {
  uint32_t index = 0;
};

// A LibTorch stream in the form of c10::Stream::pack3(). This header does not need LibTorch;
// client/torch_device/torch_stream.h converts it back.
struct TorchStream {
  int64_t id = 0, device_index = 0, device_type = 0;

  bool operator==(const TorchStream&) const = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual int cuda_index() const { return -1; }  // as CUDA numbers devices; -1: the CPU

  // A thread other than the one that made the Device calls this before any other call. Otherwise
  // CUDA would make a context on device 0, the default of new threads.
  virtual void make_current() {}

  // Whether copies are done when a call returns, and a small copy costs no more per byte than a
  // large one. Then gradients go to the host one by one, from where autograd has them.
  virtual bool copies_at_once() const { return false; }

  // ---- at the start ----

  // Allocates memory of the device: aligned to 256 bytes, zeroed, kept until the Device ends. The
  // error message contains `what` and `remedy`. Throws kResourceExhausted when there is no room, or
  // when the limit Options::device_memory_bytes is reached.
  virtual std::byte* allocate(size_t bytes, const char* what, const char* remedy) = 0;

  // Allocates host memory that is page-locked, otherwise as above. It may wait for the device.
  virtual std::byte* allocate_host(size_t bytes, const char* what) = 0;

  virtual DeviceEvent create_event() = 0;

  // Whether copies need page-locked host memory. If not, pin() has nothing to do.
  virtual bool pins_host_memory() const = 0;
  // Page-locks host memory, so that copies run asynchronously at the link's speed. REQUIRES: it is
  // mapped for writing and, if several processes map it, shared (the driver rejects other memory).
  // Afterwards the mapping may be protected against writes. No copy may cross from one page-locked
  // range into another; use about kPinPieceBytes per call. If it fails, no CUDA error remains, and
  // copies of that memory still work, more slowly. Unpin before unmapping.
  static constexpr size_t kPinPieceBytes = size_t{64} << 30;
  virtual Status pin(const std::byte* host, size_t bytes) = 0;
  virtual void unpin(const std::byte* host) = 0;

  // ---- enqueued on a stream; on the path of a step nothing here waits for the device ----

  virtual void upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual void download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual void copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual void zero(Stream stream, std::byte* device, size_t bytes) = 0;

  // Adam on device memory, bit for bit optim::adam_update. Pointers of the span are device memory;
  // the array span.grads itself is read before the call returns.
  virtual void update(Stream stream, const optim::UpdateSpan& span,
                      const optim::AdamStep& step) = 0;

  // Writes the squares of gradients into one NormSum of device memory, replacing its content, bit
  // for bit as optim::take_gradients. Every parameter in `values` begins at a multiple of
  // kNormLeafNumel elements.
  virtual void squared_norm(Stream stream, ComputeType type, const std::byte* values, size_t numel,
                            std::byte* result) = 0;

  // Adds a micro-step's gradients, `numel` of `type`, to their FP32 sums. With `begins`, it sets
  // the sums to them instead. Bit for bit optim::take_gradients.
  virtual void sum_gradients(Stream stream, ComputeType type, const std::byte* grads, size_t numel,
                             float* sums, bool begins) = 0;

  // Call it before you enqueue one or more collectives, and record the stream behind them. Returns
  // the stream that must be LibTorch's current one for them; empty: the current one stays.
  virtual std::optional<TorchStream> begin_collective(Stream stream) = 0;

  // ---- order ----

  virtual void record(DeviceEvent event, Stream stream) = 0;
  virtual void wait(Stream stream, DeviceEvent event) = 0;  // the stream waits, not the caller
  virtual bool done(DeviceEvent event) = 0;
  virtual void synchronize(DeviceEvent event) = 0;  // the caller waits

  // An operator that reads parameters is about to be enqueued. Throws kInvalidArgument if it would
  // go into a CUDA graph that is being captured.
  virtual void begin_operator(const char* name) { (void)name; }
  // The calling thread has enqueued the operator, and later work on kCompute runs behind it. A
  // PacedDevice spends the operator's time here.
  virtual void end_operator() {}

  // ---- when operators ran, if that is not when the host enqueued them ----

  // Whether the host runs ahead of kCompute. If so, the functions below tell when operators ran on
  // the device. Otherwise they do nothing, and operators ran when the host called them.
  virtual bool runs_behind_host() const { return false; }
  // Operators run on kCompute from now until operators_wait(). time_copies() turns this on.
  virtual void operators_run() {}
  // Operators wait from now until operators_run(), for work that is enqueued in between. Returns
  // whether they ran before.
  virtual bool operators_wait() { return false; }
  // All operators of the step are enqueued; they wait from now on. The next work on kDownload runs
  // behind them: once it is done, their times can be taken.
  virtual void operators_end(uint32_t step) { (void)step; }
  // Takes the times of the oldest finished step that nobody has taken; only the last few steps are
  // kept. It does not block.
  virtual std::optional<OperatorTimes> take_operator_times() { return std::nullopt; }

  // ---- counters, since construction; readable by any thread ----

  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  uint64_t allocated_bytes() const { return allocated_bytes_; }
  // The peak of device memory that LibTorch had in use, including Elixir's allocations; 0 if it is
  // not counted.
  virtual uint64_t peak_bytes() { return 0; }
  virtual LinkTimes link_times() = 0;
  // Turns link_times() on if measuring has a cost: on CUDA, two timing events per copy. They count
  // from now on and are 0 before.
  virtual void time_copies() {}

  // For a trace: keeps a span of each copy from now on, until it is taken. Implies time_copies().
  virtual void keep_spans() = 0;
  // The spans that are done and were not taken before. If the device runs behind the host, a span
  // on kCompute is the operators between two waits.
  virtual std::vector<StreamSpan> take_spans() = 0;

 protected:
  std::atomic<uint64_t> h2d_bytes_{0}, d2h_bytes_{0}, allocated_bytes_{0};
};

}  // namespace elixir
