#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

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
// `drops`: it never waits for who reads standard error; what that does not take is dropped,
// counted, and the count is told (event=log_dropped).
void init_log(std::string_view program, LogLevel least = LogLevel::kInfo, bool drops = false);

// One line, one event. `fields` is "key=value key=value".
void log_line(LogLevel level, std::string_view event, std::string_view fields);

template <typename... Args>
void log_info(std::string_view event, fmt::format_string<Args...> fields, Args&&... args) {
  log_line(LogLevel::kInfo, event, fmt::format(fields, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warn(std::string_view event, fmt::format_string<Args...> fields, Args&&... args) {
  log_line(LogLevel::kWarn, event, fmt::format(fields, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(std::string_view event, fmt::format_string<Args...> fields, Args&&... args) {
  log_line(LogLevel::kError, event, fmt::format(fields, std::forward<Args>(args)...));
}

}  // namespace elixir
