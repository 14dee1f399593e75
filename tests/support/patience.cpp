#include "tests/support/patience.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "base/clock.h"

namespace elixir::test {
namespace {

// The letter of /proc/PID/stat; 'X' where there is no such process.
char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(") ");
  return end == std::string::npos ? 'X' : line[end + 2];
}

}  // namespace

bool eventually(const std::function<bool()>& condition, double limit_s) {
  for (const int64_t start_ns = monotonic_ns(); !condition();) {
    if (seconds_since(start_ns) > limit_s) return false;
    ::usleep(1000);
  }
  return true;
}

bool widen(double limit_s, const std::function<bool(double)>& attempt) {
  for (; limit_s < kPatienceS; limit_s *= 3) {
    if (attempt(limit_s)) return true;
  }
  return false;
}

bool gone(pid_t pid) {
  const char state = state_of(pid);
  return state == 'X' || state == 'Z';
}

bool asleep(pid_t id) { return state_of(id) == 'S'; }

}  // namespace elixir::test
