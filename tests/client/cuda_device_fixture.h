#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "client/cuda/cuda_device.h"
#include "tests/client/lazy_cuda_driver.h"
#include "tests/support/thrown.h"

namespace elixir {

// A CudaDevice over a LazyCudaDriver.
class CudaDeviceTest : public ::testing::Test {
 protected:
  CudaDeviceTest() { start(0); }

  void start(int index, uint64_t memory_limit_bytes = 0) {
    device_.reset();
    *record_ = {};
    auto driver = std::make_unique<LazyCudaDriver>(record_);
    cuda_ = driver.get();
    device_ = std::make_unique<CudaDevice>(std::move(driver), index, memory_limit_bytes);
  }
  std::byte* device_memory(size_t bytes) { return device_->allocate(bytes, "a block", "less"); }

  // The host has not waited, and no error is left for torch to find.
  void expect_no_wait_since(int waits) {
    EXPECT_EQ(record_->count("synchronize") + record_->count("synchronize_device"), waits);
    EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
  }
  int waits() const { return record_->count("synchronize") + record_->count("synchronize_device"); }

  std::shared_ptr<LazyCudaDriver::Record> record_ = std::make_shared<LazyCudaDriver::Record>();
  LazyCudaDriver* cuda_ = nullptr;
  std::unique_ptr<CudaDevice> device_;
};

}  // namespace elixir
