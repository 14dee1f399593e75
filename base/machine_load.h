#pragma once

// Whether others use this machine's processors. What runs beside a measurement takes its share of
// every rate, so whoever measures asks here.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace elixir {

struct MachineLoad {
  double busy = 0;        // so many processors have work
  double processors = 1;  // that this process may use

  static constexpr double kIdleShare = 0.25;
  bool idle() const { return busy < kIdleShare * processors; }
};

// Of the last minute: the system's load average. Work that began some seconds ago hardly shows.
MachineLoad load_of_last_minute();

// What other processes have used of this process's processors since it was made, or since the last
// look. One thread.
class OthersLoad {
 public:
  OthersLoad();
  MachineLoad look();

 private:
  struct Times {
    int64_t wall_ns = 0, own_ns = 0;
    double busy_s = 0;
  };
  static Times now(const std::vector<int>& processors);

  std::vector<int> processors_;
  Times last_;
};

// Seconds in which the processors had work, since the machine started: the sum of the lines "cpuN"
// of /proc/stat. Time that a hypervisor gave to others counts. 0 where the text says nothing of
// them.
double busy_seconds(std::string_view proc_stat, const std::vector<int>& processors,
                    double ticks_per_s);

}  // namespace elixir
