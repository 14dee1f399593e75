#pragma once

#include <stdexcept>
#include <string>

#include "base/status.h"

namespace elixir {

// What the client library throws: LibTorch throws too, and an operator in the middle of a forward
// pass has no other way out. code() is the exit code a program should end with.
class Error : public std::runtime_error {
 public:
  explicit Error(const Status& status)
      : std::runtime_error(status.message()), code_(status.code()) {}
  Code code() const { return code_; }
  int exit_code() const { return static_cast<int>(code_); }

 private:
  Code code_;
};

inline void throw_if_error(const Status& status) {
  if (!status.ok()) throw Error(status);
}

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw Error(result.status());
  return std::move(*result);
}

}  // namespace elixir
