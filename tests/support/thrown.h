#pragma once

// What a test expects of an exception.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

#include "base/throw_error.h"
#include "tests/support/outcomes.h"

namespace elixir {

// The error that `call` throws; the test fails when it throws none.
template <typename Call>
Status thrown(const Call& call) {
  try {
    call();
  } catch (const Error& failure) {
    return Status(failure.code(), failure.what());
  }
  ADD_FAILURE() << "nothing was thrown";
  return Status();
}

// The code, and a message that has these parts.
template <typename Call>
void expect_thrown(Code code, std::initializer_list<std::string_view> parts, const Call& call) {
  expect_refused(thrown(call), code, parts);
}

}  // namespace elixir
