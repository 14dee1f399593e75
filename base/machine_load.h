#pragma once

// Tells whether other processes use this machine's processors. They take a share of every rate, so
// a measurement asks here first.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace elixir {

struct MachineLoad {
  double busy = 0;        // processors that have work
  double processors = 1;  // processors that this process may use

  static constexpr double kIdleShare = 0.25;
  bool idle() const { return busy < kIdleShare * processors; }
};

// The system's load average over the last minute. Work that began seconds ago hardly shows in it.
MachineLoad load_of_last_minute();

// Measures how much of this process's processors other processes have used since construction, or
// since the last look(). For one thread.
class OthersLoad {
 public:
  // `alike`: as many processes, this one among them, use as much as this one and are no others. Nor
  // is the process `beside`; 0: there is none.
  explicit OthersLoad(uint32_t alike = 1, pid_t beside = 0);
  MachineLoad look();

 private:
  struct Times {
    int64_t wall_ns = 0, own_ns = 0;
    double busy_s = 0, beside_s = 0;
  };
  Times now() const;

  uint32_t alike_;
  pid_t beside_;
  std::vector<int> processors_;
  Times last_;
};

// Seconds since the machine started in which these processors had work: the sum of the "cpuN" lines
// of /proc/stat. Time that a hypervisor gave to other guests counts. Returns 0 if the text has no
// such lines.
double busy_seconds(std::string_view proc_stat, const std::vector<int>& processors,
                    double ticks_per_s);

}  // namespace elixir
