#pragma once

// Expectations of an exception.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

#include "base/throw_error.h"
#include "tests/support/outcomes.h"

namespace elixir {

// Returns the error that `call` throws. The test fails if it throws none.
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

// Expects an error with the code, and a message with these parts.
template <typename Call>
void expect_thrown(Code code, std::initializer_list<std::string_view> parts, const Call& call) {
  expect_refused(thrown(call), code, parts);
}

}  // namespace elixir
