#pragma once

#include <optional>
#include <string>
#include <vector>

namespace elixir {

// A control group of Linux, of version 1 or 2.
struct ControlGroup {
  bool version1 = false;
  std::string name;    // "/slurm/job_7"; "/" for the root
  std::string folder;  // the folder of its files, with a slash at the end; it may not exist
};

// The groups that limit a process: its own, then all parents. `controller`: "memory" or "cpu".
// `process`: a pid. If both versions are mounted, the groups of both are listed. A container may
// see only some of them, so a folder may be missing. `root` is put before /proc and /sys; "" means
// the machine itself.
std::vector<ControlGroup> control_groups(const std::string& root, const std::string& controller,
                                         const std::string& process = "self");

// The group of a process: the one of version 1 if that version has the controller. Empty if the
// system does not tell.
std::optional<ControlGroup> own_group(const std::string& root, const std::string& controller,
                                      const std::string& process = "self");

}  // namespace elixir
