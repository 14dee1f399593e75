#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "base/clock.h"
#include "base/units.h"

namespace elixir {

ProgressNotes::ProgressNotes(std::function<std::string()> line)
    : line_(std::move(line)), thread_([this] { run(); }) {}

ProgressNotes::~ProgressNotes() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  ends_.notify_one();
  thread_.join();
}

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) != 0; }

void ProgressNotes::run() {
  const bool terminal = stderr_is_terminal();
  WaitNotes notes(terminal ? 0.5 : 10);
  const int64_t begin_ns = monotonic_ns();
  bool told = false;
  MutexLock lock(mutex_);
  while (!ended_) {
    ends_.wait_until(lock, std::chrono::steady_clock::now() + std::chrono::milliseconds(250));
    if (ended_ || !notes.due(seconds_since(begin_ns))) continue;
    told = true;
    // \x1b[K: to the end of the line, where a longer one stood.
    fmt::print(stderr, "{}{}{}", terminal ? "\r" : "", line_(), terminal ? "\x1b[K" : "\n");
    std::fflush(stderr);
  }
  if (told && terminal) fmt::print(stderr, "\r\x1b[K");
}

std::string bytes_done(const std::string& what, uint64_t done, uint64_t all) {
  return fmt::format(
      "{}: {} of {}, {:.0f} %", what, format_bytes(done), format_bytes(all),
      all == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(all));
}

}  // namespace elixir
