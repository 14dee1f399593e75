#pragma once

#include <memory>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// Everything on the CPU: "device" memory is ordinary memory, and all work is done, by the calling
// thread, when a call returns.
class HostDevice final : public Device {
 public:
  // memory_limit_bytes 0: as much as there is.
  explicit HostDevice(uint64_t memory_limit_bytes = 0) : memory_limit_bytes_(memory_limit_bytes) {}

  c10::Device torch_device() const override { return c10::Device(c10::DeviceType::CPU); }
  std::byte* allocate(size_t bytes, const char* what, const char* remedy) override;
  DeviceEvent create_event() override { return {}; }
  Status pin(const std::byte*, size_t, bool) override { return Status(); }
  void unpin(const std::byte*) override {}

  void upload(Stream, std::byte* device, const std::byte* host, size_t bytes) override;
  void download(Stream, std::byte* host, const std::byte* device, size_t bytes) override;
  void copy(Stream, std::byte* to, const std::byte* from, size_t bytes) override;
  void zero(Stream, std::byte* device, size_t bytes) override;
  void update(Stream, const optim::AdamSpan& span, const optim::AdamStep& step) override;
  void keep_until_done(const at::Tensor&, Stream) override {}
  c10::OptionalStreamGuard enter(Stream) override { return c10::OptionalStreamGuard(); }

  void record(DeviceEvent, Stream) override {}
  void wait(Stream, DeviceEvent) override {}
  bool done(DeviceEvent) override { return true; }
  void synchronize(DeviceEvent) override {}

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  const uint64_t memory_limit_bytes_;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
};

}  // namespace elixir
