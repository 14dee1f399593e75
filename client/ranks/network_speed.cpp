#include "client/ranks/network_speed.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace elixir {
namespace {

namespace fs = std::filesystem;

template <typename T>
T first_of(const fs::path& file) {
  T value{};
  std::ifstream(file) >> value;
  return value;
}

// Calls `each` for every entry of a folder that may not be there.
template <typename Each>
void for_entries(const fs::path& folder, const Each& each) {
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    each(entry->path());
  }
}

}  // namespace

double network_gb_s(const std::string& root) {
  constexpr double kMegabits = 1e6 / 8 / 1e9, kGigabits = 1e9 / 8 / 1e9;
  double fastest = 0;
  for_entries(root + "/sys/class/net", [&](const fs::path& link) {
    std::error_code failure;
    if (!fs::exists(link / "device", failure)) return;  // a bridge, or a container's
    if (first_of<std::string>(link / "operstate") != "up") return;
    fastest = std::max(fastest, kMegabits * first_of<double>(link / "speed"));  // -1: not known
  });
  for_entries(root + "/sys/class/infiniband", [&](const fs::path& adapter) {
    for_entries(adapter / "ports", [&](const fs::path& port) {
      if (first_of<int>(port / "state") != 4) return;  // "4: ACTIVE"
      fastest = std::max(fastest, kGigabits * first_of<double>(port / "rate"));
    });
  });
  return fastest;
}

}  // namespace elixir
