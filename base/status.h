#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"

namespace elixir {

// A result without a value. The message says what happened, what it needed against what it had, and
// the command that fixes it.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  int exit_code() const { return static_cast<int>(code_); }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <typename... Args>
Status error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

// kResourceExhausted, "no memory left". Allocates nothing, because such a short text fits into the
// std::string itself.
Status no_memory_left() noexcept;

// "what: strerror(errno)", and the fix if known. If no memory or no descriptor is left, the code is
// kResourceExhausted in place of kInternal, kBadInput and kInvalidArgument.
Status errno_status(Code code, const std::string& what);

// A value, or the status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}        // NOLINT: implicit by design
  Result(Status status) : value_(std::move(status)) {  // NOLINT
    ELIXIR_CHECK(!std::get<Status>(value_).ok(), "an ok Result must carry a value");
  }

  bool ok() const { return std::holds_alternative<T>(value_); }
  Status status() const { return ok() ? Status() : std::get<Status>(value_); }

  // REQUIRES: ok(), which std::get() checks: it throws otherwise.
  T& operator*() { return std::get<T>(value_); }
  const T& operator*() const { return std::get<T>(value_); }
  T* operator->() { return &std::get<T>(value_); }
  const T* operator->() const { return &std::get<T>(value_); }

 private:
  std::variant<T, Status> value_;
};

}  // namespace elixir

// Returns from the calling function when the expression's Status is not ok.
#define ELIXIR_RETURN_IF_ERROR(expression)           \
  do {                                               \
    ::elixir::Status elixir_status_ = (expression);  \
    if (!elixir_status_.ok()) return elixir_status_; \
  } while (false)
