#pragma once

#include <optional>
#include <string>
#include <vector>

namespace elixir {

// A control group of Linux, of version 1 or 2.
struct ControlGroup {
  bool version1 = false;
  std::string name;    // "/slurm/job_7"; "/" for the root
  std::string folder;  // of its files, with a slash at the end; it may not be there
};

// The groups that limit a process: the one that it is in, then all parents. `controller`: "memory"
// or "cpu". `process`: a pid. If both versions are mounted, those of both are listed. A container
// may see only a part of them, so a folder may be missing. `root` is put before /proc and /sys, ""
// for the machine itself.
std::vector<ControlGroup> control_groups(const std::string& root, const std::string& controller,
                                         const std::string& process = "self");

// The group that a process is in: version 1 if that has the controller. Empty if the system does
// not tell.
std::optional<ControlGroup> own_group(const std::string& root, const std::string& controller,
                                      const std::string& process = "self");

}  // namespace elixir
