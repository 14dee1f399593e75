#include "launcher/signal_handlers.h"

#include <dirent.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

namespace elixir::launcher {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// 0: no process's name.
pid_t pid_of(std::string_view name) {
  pid_t pid = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), pid);
  return fault == std::errc() && end == name.data() + name.size() ? pid : 0;
}

// A line of /proc/PID/status: "SigCgt:\t0000000180004a02", signal 1 the lowest bit.
bool handles(pid_t pid, int signal) {
  constexpr std::string_view kCaught = "SigCgt:\t";
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kCaught)) continue;
    uint64_t mask = 0;
    std::from_chars(line.data() + kCaught.size(), line.data() + line.size(), mask, 16);
    return (mask >> (signal - 1) & 1) != 0;
  }
  return false;
}

}  // namespace

int signal_handlers(pid_t group, int signal) {
  const std::unique_ptr<DIR, CloseFolder> processes(::opendir("/proc"));
  int told = 0;
  while (const dirent* entry = processes ? ::readdir(processes.get()) : nullptr) {
    const pid_t pid = pid_of(entry->d_name);
    if (pid <= 0 || ::getpgid(pid) != group || !handles(pid, signal)) continue;
    if (::kill(pid, signal) == 0) ++told;
  }
  return told;
}

}  // namespace elixir::launcher
