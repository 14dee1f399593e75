#pragma once

#include <fmt/core.h>

#include <string_view>

#include "base/enum_names.h"

namespace elixir {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
inline constexpr EnumName<LogLevel> kLogLevelNames[] = {{"debug", LogLevel::kDebug},
                                                        {"info", LogLevel::kInfo},
                                                        {"warn", LogLevel::kWarn},
                                                        {"error", LogLevel::kError}};

// Names the process in every line and sets the least level that is written. Thread-safe after
// the first call. Lines go to standard error:
//   2026-01-31T12:00:00.123Z info elixird event=attach session=1 rank=0
// `drops`: the log never waits for the reader of standard error. It drops and counts lines that do
// not fit, and logs the count (event=log_dropped).
void init_log(std::string_view program, LogLevel least = LogLevel::kInfo, bool drops = false);

// One line, one event. `fields` is "key=value key=value". If there is no memory for a line, it is
// dropped and counted as above, so reporting a failure never causes another one.
void log_line(LogLevel level, std::string_view event, std::string_view fields) noexcept;
void log_format(LogLevel level, std::string_view event, fmt::string_view fields,
                fmt::format_args values) noexcept;

template <typename... Args>
void log_info(std::string_view event, fmt::format_string<Args...> fields, Args&&... args) noexcept {
  log_format(LogLevel::kInfo, event, fields, fmt::make_format_args(args...));
}
template <typename... Args>
void log_warn(std::string_view event, fmt::format_string<Args...> fields, Args&&... args) noexcept {
  log_format(LogLevel::kWarn, event, fields, fmt::make_format_args(args...));
}
template <typename... Args>
void log_error(std::string_view event, fmt::format_string<Args...> fields,
               Args&&... args) noexcept {
  log_format(LogLevel::kError, event, fields, fmt::make_format_args(args...));
}

}  // namespace elixir
