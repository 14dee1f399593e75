#pragma once

#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/status.h"

namespace CLI {
class App;
}

namespace elixir::daemon {

// Every limit of elixird, with its default. The flag --some-name is some_name in the TOML file; a
// flag wins over the file.
struct Config {
  std::string runtime_dir;               // "": shm/runtime_folder.h chooses
  uint32_t workers = 0;                  // 0: measured
  std::string memory_limit;              // for all sessions, "40GiB"; "": what the machine has
  std::string memory_margin = "256MiB";  // left free on the machine
  std::string memory_room;               // the machine has so much where MemAvailable lies
  uint64_t slice_numel = 64 * 1024;      // parameters a worker takes at a time
  uint32_t max_sessions = 256;
  uint32_t max_jobs = 64;
  double exit_when_idle = 0;        // seconds without a session; 0: never
  uint32_t attach_timeout_s = 120;  // for all ranks of a job to attach and say hello
  bool no_bandwidth_probe = false;
  std::string log_level = "info";

  uint64_t memory_limit_bytes = UINT64_MAX;    // from memory_limit
  uint64_t memory_margin_bytes = 0;            // from memory_margin
  uint64_t memory_room_bytes = 0;              // from memory_room
  LogLevel least_log_level = LogLevel::kInfo;  // from log_level
};

// Parses the command line and the file named by --config. Returns -1 to go on, else the exit code;
// errors are printed.
int read_config(CLI::App& app, int argc, const char* const* argv, Config* config);

// Applies a TOML file. kInvalidArgument names an unknown key with the nearest known one, or a value
// of the wrong type.
Status apply_toml(const std::string& path, Config* config);

// Checks ranges and fills the derived fields.
Status finish_config(Config* config);

}  // namespace elixir::daemon
