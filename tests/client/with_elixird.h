#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/daemon/daemon_process.h"

namespace elixir::test {

// One elixird serves all tests of a suite. Trainings of this process find it by the environment.
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

}  // namespace elixir::test
