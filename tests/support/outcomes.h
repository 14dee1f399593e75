#pragma once

// Expectations of a Result or a Status.

#include <gtest/gtest.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace elixir {

// Returns the value. If there is none, the test fails here with the status's message.
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}
inline void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// Expects the code, and a message with these parts.
inline void expect_refused(const Status& status, Code code,
                           std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string_view part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.message();
  }
}

// Returns the message; expects the code.
inline std::string refusal_of(const Status& status, Code code) {
  EXPECT_EQ(status.code(), code) << status.message();
  return status.message();
}

}  // namespace elixir

namespace elixir::test {

using elixir::expect_refused;
using elixir::must;

}  // namespace elixir::test
