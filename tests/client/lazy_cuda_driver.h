#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/cuda/cuda_driver.h"

namespace elixir {

// A CUDA without a GPU that is as late as CUDA may be. Work on a stream is done only when somebody
// waits for an event or for the device, and then only as much as needed. So bytes are right only if
// events order the work. Memory "of the device" is ordinary memory, filled with 0xcd. The clock
// advances only by copies: one millisecond per byte.
class LazyCudaDriver final : public CudaDriver {
 public:
  struct Call {
    std::string name;
    // 0: torch's default stream; from 100: another current stream; else a pool stream
    int stream = -1;
  };
  // Shared with the test, which also reads it after the driver is gone.
  struct Record {
    std::vector<Call> calls;
    std::set<const void*> registered;
    int live_events = 0, live_memory = 0, live_host_memory = 0;
    double memory_fraction = 0;
    CudaResult pending_error = CudaResult::kSuccess;
    int stream_of_last(const std::string& name) const;  // the last call of that name; -1: none
    int count(const std::string& name) const;
  };

  explicit LazyCudaDriver(std::shared_ptr<Record> record) : record_(std::move(record)) {}

  // The next call of the function with this name fails; "allocate" and "use_device" throw the
  // result.
  void fail(const std::string& function, CudaResult result) { failures_[function] = result; }
  void set_current_stream(int stream) { current_stream_ = stream; }
  bool capturing = false;  // every stream
  size_t total_bytes = size_t{1} << 30;
  uint64_t peak = 0;

  void use_device(int index) override;
  void limit_memory(int index, double fraction) override;
  void* allocate(size_t bytes) override;
  void free(void* memory) override;
  uint64_t peak_bytes(int) override { return peak; }
  TorchStream pool_stream(int index) override;
  TorchStream current_stream(int index) override;
  CudaStream handle(const TorchStream& stream) override;
  void sum_gradients(const TorchStream& stream, ComputeType type, const void* grads, size_t numel,
                     float* sums, bool begins) override;

  CudaResult memory_info(size_t* free_bytes, size_t* total) override;
  CudaResult host_register(const void* host, size_t bytes) override;
  CudaResult host_unregister(const void* host) override;
  CudaResult host_allocate(void** host, size_t bytes) override;
  CudaResult host_free(void* host) override;
  CudaResult create_event(CudaEvent* event) override;
  CudaResult create_timed_event(CudaEvent* event) override;
  CudaResult destroy_event(CudaEvent event) override;
  CudaResult record(CudaEvent event, CudaStream stream) override;
  CudaResult wait(CudaStream stream, CudaEvent event) override;
  CudaResult is_capturing(CudaStream stream, bool* capturing) override;
  CudaResult query(CudaEvent event) override;
  CudaResult synchronize(CudaEvent event) override;
  CudaResult elapsed(float* milliseconds, CudaEvent begin, CudaEvent end) override;
  CudaResult synchronize_device() override;
  CudaResult copy(void* to, const void* from, size_t bytes, CopyKind kind,
                  CudaStream stream) override;
  CudaResult zero(void* device, size_t bytes, CudaStream stream) override;
  CudaResult take_error() override;
  const char* error_text(CudaResult) override { return "the fake's text"; }
  const char* error_name(CudaResult) override { return "cudaErrorFake"; }

  Status update(const optim::UpdateSpan& span, const optim::AdamStep& step,
                CudaStream stream) override;
  Status squared_norm(ComputeType type, const void* values, size_t numel, NormSum* result,
                      CudaStream stream) override;

 private:
  struct Queue {
    std::vector<std::function<void()>> work;
    size_t done = 0;
  };
  // A place in a stream; stream -1: never recorded.
  struct Point {
    int stream = -1;
    size_t position = 0;
  };

  // Notes the call and returns its injected failure, once.
  CudaResult note(const std::string& name, int stream = -1);
  CudaResult enqueue(const std::string& name, CudaStream stream, std::function<void()> work);
  void run_until(const Point& point);
  static int number(CudaStream stream);
  static size_t number(CudaEvent event);

  const std::shared_ptr<Record> record_;
  std::map<std::string, CudaResult> failures_;
  std::map<int, Queue> queues_;
  std::vector<Point> events_;
  std::map<size_t, double> times_ms_;  // times of timed events, by number; NaN: not done
  double clock_ms_ = 0;
  std::map<void*, std::unique_ptr<std::byte[]>> memory_;
  int pool_streams_ = 0;
  int current_stream_ = 0;
};

}  // namespace elixir
