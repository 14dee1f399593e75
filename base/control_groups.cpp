#include "base/control_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace elixir {
namespace {

constexpr const char* kMount = "/sys/fs/cgroup";

void add_with_parents(const std::string& mount, bool version1, std::string name,
                      std::vector<ControlGroup>* groups) {
  while (!name.empty() && name.back() == '/') name.pop_back();
  for (;;) {
    groups->push_back({version1, name.empty() ? "/" : name, mount + name + "/"});
    const size_t slash = name.rfind('/');
    if (slash == std::string::npos) return;
    name.resize(slash);
  }
}

}  // namespace

// A line of /proc/PID/cgroup is "number:controllers:path". Version 2 has no controllers.
std::vector<ControlGroup> control_groups(const std::string& root, const std::string& controller,
                                         const std::string& process) {
  std::vector<ControlGroup> groups;
  std::ifstream lines(root + "/proc/" + process + "/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    const std::string name = line.substr(second + 1);
    if (list.empty()) {
      add_with_parents(root + kMount, /*version1=*/false, name, &groups);
    } else if (("," + list + ",").find("," + controller + ",") != std::string::npos) {
      add_with_parents(fmt::format("{}{}/{}", root, kMount, controller), /*version1=*/true, name,
                       &groups);
      if (list == controller) continue;
      // Without a link named after the one controller.
      add_with_parents(fmt::format("{}{}/{}", root, kMount, list), /*version1=*/true, name,
                       &groups);
    }
  }
  return groups;
}

std::optional<ControlGroup> own_group(const std::string& root, const std::string& controller,
                                      const std::string& process) {
  const std::vector<ControlGroup> groups = control_groups(root, controller, process);
  if (groups.empty()) return std::nullopt;
  const auto version1 = std::find_if(groups.begin(), groups.end(),
                                     [](const ControlGroup& group) { return group.version1; });
  return version1 == groups.end() ? groups.front() : *version1;
}

}  // namespace elixir
