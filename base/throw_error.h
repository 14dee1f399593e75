#pragma once

#include <utility>

#include "base/error.h"
#include "base/status.h"

namespace elixir {

// A Status becomes an Error where the client library meets LibTorch, and nowhere below.
inline void throw_if_error(const Status& status) {
  if (!status.ok()) throw Error(status);
}

template <typename T>
T value_or_throw(Result<T> result) {
  throw_if_error(result.status());
  return std::move(*result);
}

}  // namespace elixir
