#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "client/device/copy_log.h"
#include "client/device/device.h"

namespace elixir {

// Runs everything on the CPU: "device" memory is ordinary memory, every stream is the calling
// thread, and all work is done when a call returns. (A PacedDevice may finish it later.)
class HostDevice : public Device {
 public:
  // `memory_limit_bytes` 0: no limit.
  explicit HostDevice(uint64_t memory_limit_bytes = 0) : memory_limit_bytes_(memory_limit_bytes) {}

  bool copies_at_once() const override { return true; }
  std::byte* allocate(size_t bytes, const char* what, const char* remedy) override;
  std::byte* allocate_host(size_t bytes, const char* what) override;
  DeviceEvent create_event() override { return {}; }
  bool pins_host_memory() const override { return false; }
  Status pin(const std::byte*, size_t) override { return Status(); }
  void unpin(const std::byte*) override {}

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
  void wait(Stream, DeviceEvent) override {}
  bool done(DeviceEvent) override { return true; }
  void synchronize(DeviceEvent) override {}

  LinkTimes link_times() override { return log_.link_times(); }
  void keep_spans() override { log_.keep_spans(); }
  std::vector<StreamSpan> take_spans() override { return log_.take_spans(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::byte* new_memory(size_t bytes, const char* what, const char* remedy);

  const uint64_t memory_limit_bytes_;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  int64_t collective_begin_ns_[kStreams] = {};  // for kGather and kReduce; 0: none

 protected:
  CopyLog log_;
};

}  // namespace elixir
