#include "base/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/text_file.h"
#include "base/units.h"

namespace elixir {
namespace {

// One flavour of the memory controller: where it is mounted and what its files are called.
struct Controller {
  const char* mount;
  const char* limit_file;
  const char* usage_file;
  const char* stat_prefix;  // of the keys in memory.stat that count the children too
};
constexpr Controller kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", ""};
constexpr Controller kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                               "memory.usage_in_bytes", "total_"};

// The number after `key` in a file of "key value" lines; 0 when it is not there.
uint64_t read_key(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

// `wanted`: "MemAvailable:", for example.
uint64_t meminfo(const std::string& root, std::string_view wanted) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name, unit;
  uint64_t kib = 0;
  while (file >> name >> kib) {
    if (name == wanted) return kib * 1024;
    std::getline(file, unit);
  }
  return UINT64_MAX;
}

void take_less(MemoryRoom* room, uint64_t available_bytes, std::string limit) {
  if (available_bytes >= room->available_bytes) return;
  room->available_bytes = available_bytes;
  room->limit = std::move(limit);
}

// Whether what is used already counts.
enum class Count { kRoom, kCapacity };

void look_at_group(const std::string& root, const Controller& controller, const std::string& group,
                   Count count, MemoryRoom* room) {
  const std::string folder = root + controller.mount + group + "/";
  const std::optional<uint64_t> limit = read_number(folder + controller.limit_file);
  std::optional<uint64_t> usage = read_number(folder + controller.usage_file);
  if (!limit || !usage) return;
  if (count == Count::kCapacity) usage = 0;
  const std::string stat = folder + "memory.stat";
  const std::string prefix = controller.stat_prefix;
  // Half of the active file pages, as the kernel's own MemAvailable does.
  const uint64_t droppable =
      read_key(stat, prefix + "inactive_file") + read_key(stat, prefix + "active_file") / 2;
  const uint64_t used = *usage - std::min(*usage, droppable);
  take_less(room, *limit - std::min(*limit, used),
            std::string(controller.limit_file) + " of cgroup " + (group.empty() ? "/" : group));
}

// The group and all its parents. A path that the mount does not show (a container that sees only
// its own part) is skipped; its parents may be there.
void look_upwards(const std::string& root, const Controller& controller, std::string group,
                  Count count, MemoryRoom* room) {
  while (!group.empty() && group.back() == '/') group.pop_back();
  for (;;) {
    look_at_group(root, controller, group, count, room);
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.resize(slash);
  }
}

struct Membership {
  const Controller* controller;
  std::string group;
};

// The groups of a process whose controller may be the one of memory. A line of /proc/PID/cgroup is
// "number:controllers:path"; version 2 has number 0 and no controllers.
std::vector<Membership> memberships(const std::string& root, const std::string& process) {
  std::vector<Membership> result;
  std::ifstream lines(root + "/proc/" + process + "/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version1 = controllers.find(",memory,") != std::string::npos;
    if (!version1 && controllers != ",,") continue;
    result.push_back({version1 ? &kVersion1 : &kVersion2, line.substr(second + 1)});
  }
  return result;
}

// The least of `machine` and the groups.
MemoryRoom least(const std::string& root, MemoryRoom machine, Count count) {
  for (const auto& [controller, group] : memberships(root, "self")) {
    look_upwards(root, *controller, group, count, &machine);
  }
  return machine;
}

MemoryRoom at_least(uint64_t bytes, std::string name, uint64_t free_bytes) {
  if (free_bytes > bytes) return {free_bytes, "memory_room as set, above " + name};
  if (bytes == UINT64_MAX) return {bytes, "no known limit"};
  return {bytes, std::move(name)};
}

}  // namespace

uint64_t free_memory_setting() {
  const char* const text = std::getenv("ELIXIR_MEMORY_ROOM");
  if (text == nullptr || *text == '\0') return 0;
  const Result<uint64_t> bytes = parse_bytes(text);
  if (bytes.ok()) return *bytes;
  log_warn("memory_room_ignored", "ELIXIR_MEMORY_ROOM=\"{}\" text=\"{}\"", text,
           bytes.status().message());
  return 0;
}

MemoryRoom memory_room(const std::string& root, uint64_t free_bytes) {
  const uint64_t available = meminfo(root, "MemAvailable:");
  return least(root, at_least(available, "MemAvailable of this machine", free_bytes), Count::kRoom);
}

MemoryRoom memory_capacity(const std::string& root) {
  const uint64_t total = meminfo(root, "MemTotal:");
  return least(root, at_least(total, "MemTotal of this machine", free_memory_setting()),
               Count::kCapacity);
}

std::string memory_group(const std::string& root, const std::string& process) {
  std::string group;
  for (const Membership& membership : memberships(root, process)) {
    // Version 2 counts memory only where version 1 does not.
    if (membership.controller == &kVersion1) return membership.group;
    group = membership.group;
  }
  return group;
}

uint64_t used_swap_bytes(const std::string& root) {
  const uint64_t total = meminfo(root, "SwapTotal:");
  return total == UINT64_MAX ? 0 : total - std::min(total, meminfo(root, "SwapFree:"));
}

}  // namespace elixir
