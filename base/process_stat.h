#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace elixir {

// The contents of /proc/PID/stat: "PID (NAME) STATE ...".
struct ProcessStat {
  std::string name;    // the program's name, its first 15 bytes
  std::string fields;  // begins with the state: 'T' is stopped, 'Z' and 'X' have ended
  char state() const { return fields.front(); }
  // A field by its number, counted from the state, which is 0; "" if there is none.
  std::string field(int number) const;
};

// Empty if there is no such process, or the system does not tell.
std::optional<ProcessStat> process_stat(pid_t pid);

}  // namespace elixir
