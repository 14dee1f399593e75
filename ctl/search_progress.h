#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iostream>
#include <string_view>

#include "base/clock.h"
#include "base/progress.h"

namespace elixir::ctl {

// Progress of a search: after two seconds, prints each value that is tried, if standard error is a
// terminal.
class SearchProgress {
 public:
  void looking_at(std::string_view what, uint64_t value) const {
    constexpr double kQuietSeconds = 2;
    if (seconds_since(begin_ns_) < kQuietSeconds || !stderr_is_terminal()) return;
    std::cerr << fmt::format("elixirctl: looking at {} {}\n", what, value);
  }

 private:
  const int64_t begin_ns_ = monotonic_ns();
};

}  // namespace elixir::ctl
