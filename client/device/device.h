#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace elixir {

// Where a trainer computes: its memory for gathered chunks and its link to the host. Used by the
// thread that runs the model.
class Device {
 public:
  virtual ~Device() = default;

  virtual c10::Device torch_device() const = 0;

  // One block of the rCache, aligned to 256 bytes, kept until the Device ends. Throws
  // elixir::Error (kResourceExhausted) when there is no room.
  virtual std::byte* allocate_block(size_t bytes) = 0;

  // Host to device, and device to host. Done, for the thread that computes, when they return.
  virtual void upload(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual void download(std::byte* host, const std::byte* device, size_t bytes) = 0;

  uint64_t h2d_bytes() const { return h2d_bytes_; }  // since construction
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  uint64_t allocated_bytes() const { return allocated_bytes_; }

 protected:
  uint64_t h2d_bytes_ = 0, d2h_bytes_ = 0, allocated_bytes_ = 0;
};

}  // namespace elixir
