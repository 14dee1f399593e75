#pragma once

// What a test expects of a Result or a Status.

#include <gtest/gtest.h>

#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace elixir::test {

// The value. Without it the test fails here, with the status's message.
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

// The code, and a message that has these parts.
inline void expect_refused(const Status& status, Code code,
                           std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string_view part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.message();
  }
}

}  // namespace elixir::test
