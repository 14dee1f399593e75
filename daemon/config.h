#pragma once

#include <cstdint>
#include <string>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/status.h"

namespace CLI {
class App;
}

namespace elixir::daemon {

inline constexpr uint32_t kMaxSessions = 4096;  // the most that max_sessions may be
inline constexpr uint32_t kMaxCheckpointThreads = 64;

// Every limit of elixird, with its default. The flag --some-name is some_name in the TOML file; a
// flag wins over the file.
struct Config {
  std::string runtime_dir;                   // "": shm/runtime_folder.h chooses
  std::string launch;                        // the launch that it serves; "": a service
  uint32_t workers = 0;                      // 0: measured
  uint64_t memory_limit_bytes = UINT64_MAX;  // for all sessions, beside the machine's own limit
  uint64_t memory_margin_bytes = uint64_t{256} << 20;  // left free on the machine
  // The machine's free memory, if MemAvailable is wrong; 0: it is right.
  uint64_t memory_room_bytes = free_memory_setting();
  // Parameters that a worker takes at a time. A user's flag or file must say at least 4096.
  uint64_t slice_numel = 64 * 1024;
  uint32_t max_sessions = 256;
  uint32_t max_jobs = 64;
  double exit_when_idle = 0;        // seconds without a session; 0: never
  uint32_t attach_timeout_s = 600;  // for all ranks of a job to attach and say hello
  uint32_t checkpoint_threads = 2;  // for each save or load
  uint64_t checkpoint_rate = 0;  // bytes per second that a save may write; 0: what the disk takes
  bool no_bandwidth_probe = false;
  LogLevel log_level = LogLevel::kInfo;
};

// Parses the command line and the file named by --config. Returns -1 to continue, else the exit
// code; prints errors.
int read_config(CLI::App& app, int argc, const char* const* argv, Config* config);

// Applies a TOML file: some_name = value is --some-name value. kInvalidArgument names the file and
// the line. It also names the known key that is nearest to an unknown one, or says what is wrong
// with a value.
Status apply_toml(const std::string& path, Config* config);

// Checks the ranges.
Status check_config(const Config& config);

}  // namespace elixir::daemon
