#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/dropping_sink.h"
#include "base/printable.h"

namespace elixir {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<size_t>(level)];
}

std::atomic<uint64_t> lines_without_memory{0};  // since the last one for which there was some

std::shared_ptr<spdlog::logger> make_logger(std::string_view program, bool drops = false) {
  spdlog::sink_ptr sink;
  if (drops) {
    sink = std::make_shared<DroppingSink>(STDERR_FILENO);
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(program), std::move(sink));
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      "%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %n %v", spdlog::pattern_time_type::utc));
  logger->flush_on(spdlog::level::debug);
  // In place of a line to standard error, which may wait.
  logger->set_error_handler([](const std::string&) { ++lines_without_memory; });
  return logger;
}

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = make_logger("elixir");
  return instance;
}

}  // namespace

void init_log(std::string_view program, LogLevel least, bool drops) {
  logger() = make_logger(program, drops);
  logger()->set_level(to_spdlog(least));
}

// One line whatever the fields hold: names and texts of peers must not forge others, nor speak to a
// terminal.
void log_line(LogLevel level, std::string_view event, std::string_view fields) noexcept {
  log_format(level, event, "{}", fmt::make_format_args(fields));
}

void log_format(LogLevel level, std::string_view event, fmt::string_view fields,
                fmt::format_args values) noexcept {
  const uint64_t dropped = lines_without_memory;
  try {
    const std::string text = printable(fmt::vformat(fields, values));
    if (dropped > 0) logger()->log(to_spdlog(level), "event=log_dropped lines={}", dropped);
    logger()->log(to_spdlog(level), "event={}{}{}", event, text.empty() ? "" : " ", text);
    lines_without_memory -= dropped;
  } catch (const std::exception&) {
    ++lines_without_memory;
  }
}

}  // namespace elixir
