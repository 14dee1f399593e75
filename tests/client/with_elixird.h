#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/client/small_training.h"
#include "tests/daemon/daemon_process.h"

namespace elixir::test {

// One elixird for all tests of a suite, which trainings of this process find.
class WithElixird : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = std::make_unique<elixir::testing::DaemonProcess>(
        std::vector<std::string>{"--no-bandwidth-probe"});
    ::setenv("ELIXIR_RUNTIME_DIR", daemon_->folder().path.c_str(), 1);
  }
  static void TearDownTestSuite() { daemon_.reset(); }

  static inline std::unique_ptr<elixir::testing::DaemonProcess> daemon_;
};

// All ranks of both agree, and so do the two.
inline void expect_equal_weights(const TrainingOutcome& a, const TrainingOutcome& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, weight] : a.weights) {
    EXPECT_TRUE(at::equal(weight, b.weights.at(name))) << name;
  }
  EXPECT_EQ(a.weights_xxh64, b.weights_xxh64);
  EXPECT_NE(a.weights_xxh64, 0u);
}

inline void expect_equal_bits(const TrainingOutcome& a, const TrainingOutcome& b) {
  expect_equal_weights(a, b);
  EXPECT_EQ(a.losses, b.losses);
}

}  // namespace elixir::test
