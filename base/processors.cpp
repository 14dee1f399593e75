#include "base/processors.h"

#include <fmt/format.h>
#include <limits.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "base/control_groups.h"
#include "base/text_file.h"

namespace elixir {
namespace {

constexpr int kMaxProcessors = 8192;

// A kilobyte of the stack: a new thread that binds itself needs no memory.
struct ProcessorSet {
  cpu_set_t sets[kMaxProcessors / CPU_SETSIZE] = {};
  cpu_set_t* const set = sets;
  const size_t bytes = sizeof sets;
};

// Processors' worth of time that a group may use; 0: it has no limit of its own.
double group_quota(const ControlGroup& group) {
  double quota_us = 0, period_us = 0;
  if (group.version1) {
    std::ifstream(group.folder + "cpu.cfs_quota_us") >> quota_us;  // -1: none
    std::ifstream(group.folder + "cpu.cfs_period_us") >> period_us;
  } else {
    std::ifstream(group.folder + "cpu.max") >> quota_us >> period_us;  // "max 100000": none
  }
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : 0;
}

}  // namespace

std::vector<int> usable_processors(pid_t process) {
  ProcessorSet usable;
  std::vector<int> processors;
  if (::sched_getaffinity(process, usable.bytes, usable.set) == 0) {
    for (int i = 0; i < kMaxProcessors; ++i) {
      if (CPU_ISSET_S(i, usable.bytes, usable.set)) processors.push_back(i);
    }
  }
  if (processors.empty() && process == 0) processors.push_back(0);
  return processors;
}

std::optional<ProcessorQuota> processor_quota(const std::string& root) {
  std::optional<ProcessorQuota> least;
  for (const ControlGroup& group : control_groups(root, "cpu")) {
    const double processors = group_quota(group);
    if (processors <= 0 || (least && least->processors <= processors)) continue;
    const char* const file = group.version1 ? "cpu.cfs_quota_us" : "cpu.max";
    least = {processors, fmt::format("{} of cgroup {}", file, group.name)};
  }
  return least;
}

uint32_t parallel_threads(const std::string& root) {
  const auto usable = static_cast<double>(usable_processors().size());
  const std::optional<ProcessorQuota> quota = processor_quota(root);
  const double limit = quota ? std::ceil(quota->processors) : usable;
  return static_cast<uint32_t>(std::max(1.0, std::min(usable, limit)));
}

void bind_this_thread(const std::vector<int>& processors) {
  ProcessorSet bound;
  for (const int processor : processors) CPU_SET_S(processor, bound.bytes, bound.set);
  ::sched_setaffinity(0, bound.bytes, bound.set);
}

uint64_t last_level_cache_bytes(const std::vector<int>& processors, const std::string& root) {
  uint64_t last = 0, bytes = 0;
  std::set<std::string> counted;  // by the processors that share one
  for (const int processor : processors) {
    for (int index = 0;; ++index) {
      const std::string cache =
          fmt::format("{}/sys/devices/system/cpu/cpu{}/cache/index{}/", root, processor, index);
      const uint64_t level = read_number(cache + "level").value_or(0);
      if (level == 0) break;
      if (level < last) continue;
      if (level > last) {
        counted.clear();
        bytes = 0;
        last = level;
      }
      const Result<std::string> sharers = read_text_file(cache + "shared_cpu_list");
      if (!sharers.ok() || !counted.insert(*sharers).second) continue;
      bytes += read_number(cache + "size").value_or(0) << 10;  // "307200K"
    }
  }
  return bytes;
}

uint32_t numa_nodes_of(const std::vector<int>& processors, const std::string& root) {
  std::set<std::string> nodes;
  for (const int processor : processors) {
    std::error_code failure;
    const auto folder = fmt::format("{}/sys/devices/system/cpu/cpu{}", root, processor);
    for (std::filesystem::directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure)) {
      const std::string name = entry->path().filename();
      const bool numbered = name.size() > 4 && std::isdigit(static_cast<unsigned char>(name[4]));
      if (name.starts_with("node") && numbered) nodes.insert(name);
    }
  }
  return std::max(static_cast<uint32_t>(nodes.size()), 1u);
}

std::string processor_name(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const bool names = line.starts_with("model name") || line.starts_with("CPU part");
    const size_t value = line.find(": ");
    if (names && value != line.npos) return line.substr(value + 2);
  }
  return "";
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace elixir
