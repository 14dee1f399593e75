#include "base/oom_watch.h"

#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <utility>

#include "base/control_groups.h"
#include "base/host_memory.h"
#include "base/units.h"

namespace elixir {
namespace {

// The value of the line "oom_kill N".
std::optional<uint64_t> read_victims(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace

OomWatch::OomWatch(const std::string& process, std::string root)
    : root_(std::move(root)), counter_(root_ + "/proc/vmstat") {
  for (const ControlGroup& group : control_groups(root_, "memory", process)) {
    const std::string path =
        group.folder + (group.version1 ? "memory.oom_control" : "memory.events");
    if (!read_victims(path)) continue;
    counter_ = path;
    group_ = group.name;
    break;
  }
  const MemoryRoom most = memory_capacity(root_, process);
  limit_ = fmt::format("{}: {}", most.limit, format_bytes(most.available_bytes));
  before_ = victims();
}

uint64_t OomWatch::victims() const { return read_victims(counter_).value_or(0); }

std::string OomWatch::verdict() const {
  if (victims() <= before_) return "";
  return fmt::format(
      "the kernel's out-of-memory killer has ended a process of {} ({}): raise that limit, or "
      "train with less (bf16, a smaller --batch or --seq, fewer ranks)",
      group_.empty() ? "this machine" : "cgroup " + group_, limit_);
}

}  // namespace elixir
