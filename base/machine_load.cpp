#include "base/machine_load.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

#include "base/clock.h"
#include "base/process_stat.h"
#include "base/processors.h"
#include "base/text_file.h"

namespace elixir {
namespace {

double ticks_per_s() { return static_cast<double>(::sysconf(_SC_CLK_TCK)); }

// The processor time of a process, with that of its ended threads.
double used_seconds(pid_t process) {
  constexpr int kUserTime = 11, kSystemTime = 12;  // of ProcessStat::field()
  const std::optional<ProcessStat> stat = process_stat(process);
  if (!stat) return 0;
  const auto ticks = [&](int number) { return std::strtod(stat->field(number).c_str(), nullptr); };
  return (ticks(kUserTime) + ticks(kSystemTime)) / ticks_per_s();
}

}  // namespace

MachineLoad load_of_last_minute() {
  MachineLoad load;
  load.processors = static_cast<double>(usable_processors().size());
  if (::getloadavg(&load.busy, 1) != 1) load.busy = 0;
  return load;
}

OthersLoad::OthersLoad(uint32_t alike, pid_t beside)
    : alike_(alike), beside_(beside), processors_(usable_processors()), last_(now()) {}

OthersLoad::Times OthersLoad::now() const {
  const Result<std::string> text = read_text_file("/proc/stat");
  timespec own{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  return {.wall_ns = monotonic_ns(),
          .own_ns = own.tv_sec * 1'000'000'000 + own.tv_nsec,
          .busy_s = busy_seconds(text.ok() ? *text : "", processors_, ticks_per_s()),
          .beside_s = beside_ > 0 ? used_seconds(beside_) : 0};
}

MachineLoad OthersLoad::look() {
  const Times times = now();
  const double wall_s = static_cast<double>(times.wall_ns - last_.wall_ns) * 1e-9;
  const double own_s = static_cast<double>(times.own_ns - last_.own_ns) * 1e-9;
  const double ours_s = alike_ * own_s + times.beside_s - last_.beside_s;
  const double others_s = std::max(0.0, times.busy_s - last_.busy_s - ours_s);
  last_ = times;
  return {.busy = wall_s > 0 ? others_s / wall_s : 0,
          .processors = static_cast<double>(processors_.size())};
}

double busy_seconds(std::string_view proc_stat, const std::vector<int>& processors,
                    double ticks_per_s) {
  constexpr int kIdle = 3, kIoWait = 4, kFields = 8;  // user nice system ... softirq steal
  double ticks = 0;
  std::istringstream lines{std::string(proc_stat)};
  for (std::string line; std::getline(lines, line);) {
    int processor = 0;
    std::istringstream fields(line.starts_with("cpu") ? line.substr(3) : "");
    if (line.starts_with("cpu ") || !(fields >> processor) ||
        std::find(processors.begin(), processors.end(), processor) == processors.end()) {
      continue;
    }
    double value = 0;
    for (int field = 0; field < kFields && fields >> value; ++field) {
      if (field != kIdle && field != kIoWait) ticks += value;
    }
  }
  return ticks / ticks_per_s;
}

}  // namespace elixir
