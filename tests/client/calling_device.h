#pragma once

#include "tests/client/lazy_device.h"

namespace elixir::test {

// kMove: copies that may carry a gradient. kLook: questions about events, and the end of an
// operator.
enum class DeviceCall { kMake, kUpload, kMove, kOrder, kLook };

// A device that reports each call before it makes it, so that a test can make the call fail.
class CallingDevice : public LazyDevice {
 public:
  std::byte* allocate(size_t bytes, const char* what, const char* remedy) override {
    called(DeviceCall::kMake);
    return LazyDevice::allocate(bytes, what, remedy);
  }
  std::byte* allocate_host(size_t bytes, const char* what) override {
    called(DeviceCall::kMake);
    return LazyDevice::allocate_host(bytes, what);
  }
  DeviceEvent create_event() override {
    called(DeviceCall::kMake);
    return LazyDevice::create_event();
  }
  void upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) override {
    called(DeviceCall::kUpload);
    LazyDevice::upload(stream, device, host, bytes);
  }
  void download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) override {
    called(DeviceCall::kMove);
    LazyDevice::download(stream, host, device, bytes);
  }
  void copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) override {
    called(DeviceCall::kMove);
    LazyDevice::copy(stream, to, from, bytes);
  }
  void record(DeviceEvent event, Stream stream) override {
    called(DeviceCall::kOrder);
    LazyDevice::record(event, stream);
  }
  void wait(Stream stream, DeviceEvent event) override {
    called(DeviceCall::kOrder);
    LazyDevice::wait(stream, event);
  }
  bool done(DeviceEvent event) override {
    called(DeviceCall::kLook);
    return LazyDevice::done(event);
  }
  void synchronize(DeviceEvent event) override {
    called(DeviceCall::kLook);
    LazyDevice::synchronize(event);
  }
  void end_operator() override { called(DeviceCall::kLook); }

 private:
  virtual void called(DeviceCall call) = 0;
};

}  // namespace elixir::test
