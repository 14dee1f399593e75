#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace elixir {

// The message of a library's exception, without the stack that torch adds to its own.
inline std::string failure_text(const std::exception& failure) {
  const auto* torch_failure = dynamic_cast<const c10::Error*>(&failure);
  return torch_failure != nullptr ? torch_failure->what_without_backtrace() : failure.what();
}

}  // namespace elixir
