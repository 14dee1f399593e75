#pragma once

// A device type that LibTorch does not use here. Its guard throws on entry, as a CUDA device does
// once it has failed. Include it in one source file of a program.

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

namespace elixir::test {

inline constexpr c10::DeviceType kBrokenDevice = c10::DeviceType::PrivateUse1;
inline constexpr const char* kBrokenDeviceText = "this device has failed";

struct BrokenGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kBrokenDevice; }
  c10::Device exchangeDevice(c10::Device) const override { TORCH_CHECK(false, kBrokenDeviceText); }
  c10::Device getDevice() const override { return {kBrokenDevice, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

inline const c10::impl::DeviceGuardImplRegistrar kBrokenGuard(kBrokenDevice, new BrokenGuard);

}  // namespace elixir::test
