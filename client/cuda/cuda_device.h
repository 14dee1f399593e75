#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "client/cuda/cuda_driver.h"
#include "client/cuda/cuda_spans.h"
#include "client/device/device.h"

namespace elixir {

// A CUDA device with torch's streams, torch's allocator and CUDA's events. Only synchronize() and
// the functions for the start wait for the device, and a step calls none of them. Every four
// seconds CudaSpans also compares clocks, on a stream without work.
//
// kCompute stays one ordered stream when torch's current stream changes: its work on the new stream
// runs after the work enqueued on the previous one.
//
// A CUDA error often belongs to work enqueued earlier; the message names the call that met it.
class CudaDevice final : public Device {
 public:
  // Makes the device the calling thread's current one. `memory_limit_bytes`: for torch and Elixir
  // together; 0: no limit. Throws elixir::Error.
  CudaDevice(std::unique_ptr<CudaDriver> driver, int index, uint64_t memory_limit_bytes);
  // Waits until the device has done all work of this process.
  ~CudaDevice() override;

  int cuda_index() const override { return index_; }
  void make_current() override;
  std::byte* allocate(size_t bytes, const char* what, const char* remedy) override;
  std::byte* allocate_host(size_t bytes, const char* what) override;
  DeviceEvent create_event() override;
  bool pins_host_memory() const override { return true; }
  Status pin(const std::byte* host, size_t bytes) override;
  void unpin(const std::byte* host) override;

  void upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) override;
  void download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) override;
  void copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) override;
  void zero(Stream stream, std::byte* device, size_t bytes) override;
  void update(Stream stream, const optim::UpdateSpan& span, const optim::AdamStep& step) override;
  void squared_norm(Stream stream, ComputeType type, const std::byte* values, size_t numel,
                    std::byte* result) override;
  void sum_gradients(Stream stream, ComputeType type, const std::byte* grads, size_t numel,
                     float* sums, bool begins) override;
  std::optional<TorchStream> begin_collective(Stream stream) override;

  void record(DeviceEvent event, Stream stream) override;
  void wait(Stream stream, DeviceEvent event) override;
  bool done(DeviceEvent event) override;
  void synchronize(DeviceEvent event) override;

  // Throws for a stream that is being captured.
  void begin_operator(const char* name) override;
  void end_operator() override { (void)compute_stream(); }

  bool runs_behind_host() const override { return true; }
  void operators_run() override;
  bool operators_wait() override;
  void operators_end(uint32_t step) override;
  std::optional<OperatorTimes> take_operator_times() override;

  uint64_t peak_bytes() override;
  // A collective's span lasts from begin_collective() to the next record() on its stream.
  LinkTimes link_times() override;
  void time_copies() override;
  void keep_spans() override;
  std::vector<StreamSpan> take_spans() override;

 private:
  TorchStream torch_stream(Stream stream);
  TorchStream compute_stream();
  CudaStream cuda_stream(Stream stream) { return driver_->handle(torch_stream(stream)); }
  CudaEvent cuda_event(DeviceEvent event) const;
  std::byte* allocate_from_torch(size_t bytes, const char* what, const char* remedy);
  void check_limit(size_t bytes, const char* what, const char* remedy) const;
  void collect_spans() { check(spans_.collect(), "ask when copies ran"); }
  // Enqueues a copy over the link in a direction.
  void transfer(Stream stream, Stream direction, void* to, const void* from, size_t bytes);
  Status status_of(CudaResult result, std::string_view what);
  void check(CudaResult result, std::string_view what);

  const std::unique_ptr<CudaDriver> driver_;
  CopyLog log_;
  CudaSpans spans_{*driver_, log_};
  const int index_;
  uint64_t memory_limit_bytes_;
  std::vector<TorchStream> own_streams_;       // from kUpload on
  std::optional<TorchStream> compute_stream_;  // torch's stream for the last work on kCompute
  std::optional<DeviceEvent> handed_over_;     // orders a new compute stream behind the last
  std::optional<DeviceEvent> step_ended_;
  mutable Mutex events_mutex_;  // different threads make events and wait for them
  std::vector<CudaEvent> events_ ELIXIR_GUARDED_BY(events_mutex_);
  CudaSpans::Begin collective_begins_[kStreams];  // for kGather and kReduce
  std::vector<void*> memory_, host_memory_;
  std::map<const std::byte*, size_t> pinned_;  // address to bytes
};

}  // namespace elixir
