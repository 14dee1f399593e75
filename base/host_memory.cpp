#include "base/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/control_groups.h"
#include "base/log.h"
#include "base/text_file.h"
#include "base/units.h"

namespace elixir {
namespace {

// What the files of the memory controller are called.
struct Files {
  const char* limit;
  const char* usage;
  const char* stat_prefix;  // of the keys in memory.stat that count the children too
};
constexpr Files kVersion2{"memory.max", "memory.current", ""};
constexpr Files kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};

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

void look_at_group(const ControlGroup& group, Count count, MemoryRoom* room) {
  const Files& files = group.version1 ? kVersion1 : kVersion2;
  const std::optional<uint64_t> limit = read_number(group.folder + files.limit);
  std::optional<uint64_t> usage = read_number(group.folder + files.usage);
  if (!limit || !usage) return;
  if (count == Count::kCapacity) usage = 0;
  const std::string stat = group.folder + "memory.stat";
  const std::string prefix = files.stat_prefix;
  // Half of the active file pages, as the kernel's own MemAvailable does.
  const uint64_t droppable =
      read_key(stat, prefix + "inactive_file") + read_key(stat, prefix + "active_file") / 2;
  const uint64_t used = *usage - std::min(*usage, droppable);
  take_less(room, *limit - std::min(*limit, used),
            std::string(files.limit) + " of cgroup " + group.name);
}

// The least of `machine` and the groups.
MemoryRoom least(const std::string& root, const std::string& process, MemoryRoom machine,
                 Count count) {
  for (const ControlGroup& group : control_groups(root, "memory", process)) {
    look_at_group(group, count, &machine);
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
  return least(root, "self", at_least(available, "MemAvailable of this machine", free_bytes),
               Count::kRoom);
}

MemoryRoom memory_capacity(const std::string& root, const std::string& process) {
  const uint64_t total = meminfo(root, "MemTotal:");
  return least(root, process, at_least(total, "MemTotal of this machine", free_memory_setting()),
               Count::kCapacity);
}

std::string memory_group(const std::string& root, const std::string& process) {
  const std::optional<ControlGroup> group = own_group(root, "memory", process);
  return group ? group->name : "";
}

uint64_t used_swap_bytes(const std::string& root) {
  const uint64_t total = meminfo(root, "SwapTotal:");
  return total == UINT64_MAX ? 0 : total - std::min(total, meminfo(root, "SwapFree:"));
}

}  // namespace elixir
