#pragma once

#include <memory>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// Everything on the CPU: "device" memory is ordinary memory, copies are memcpy.
class HostDevice final : public Device {
 public:
  c10::Device torch_device() const override { return c10::Device(c10::DeviceType::CPU); }
  std::byte* allocate_block(size_t bytes) override;
  void upload(std::byte* device, const std::byte* host, size_t bytes) override;
  void download(std::byte* host, const std::byte* device, size_t bytes) override;

 private:
  struct Free {
    void operator()(std::byte* block) const;
  };
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
};

}  // namespace elixir
