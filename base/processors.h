#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace elixir {

// The processors that a process may run on (affinity and cpuset), ascending. Never empty for this
// process (0). Empty for a process that is gone. Sees up to 8192 processors.
std::vector<int> usable_processors(pid_t process = 0);

// A control group's limit on processor time.
struct ProcessorQuota {
  double processors = 0;  // 0.5: half of the time of one processor
  std::string limit;      // for messages: "cpu.max of cgroup /a/b"
};

// The least quota of this process's control group and its parents, of version 1
// (cpu.cfs_quota_us) or 2 (cpu.max). Empty if there is none. `root` is put before /proc and /sys.
std::optional<ProcessorQuota> processor_quota(const std::string& root = "");

// How many threads of this process can run at the same time: one per usable processor, but not more
// than the quota, rounded up. At least 1.
uint32_t parallel_threads(const std::string& root = "");

// Binds the calling thread to the processors. This is advice: a failure is ignored.
void bind_this_thread(const std::vector<int>& processors);

// Total bytes of the last-level caches of these processors, each cache counted once; 0 if the
// system does not tell. `root` is put before /sys, "" for the machine itself.
uint64_t last_level_cache_bytes(const std::vector<int>& processors, const std::string& root = "");

// The number of NUMA nodes that these processors belong to. 1 if the system does not tell. `root`
// is put before /sys.
uint32_t numa_nodes_of(const std::vector<int>& processors, const std::string& root = "");

// The name of the processors' model, as the system tells it; "" if it does not. `root` is put
// before /proc.
std::string processor_name(const std::string& root = "");

// This machine's name; "" if the system does not tell.
std::string host_name();

}  // namespace elixir
