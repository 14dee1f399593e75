#include "daemon/config.h"

#define TOML_HEADER_ONLY 0
#include <toml++/toml.h>

#include <functional>
#include <iostream>
#include <map>
#include <vector>

#include "base/cli.h"
#include "base/host_memory.h"
#include "base/nearest.h"
#include "base/units.h"
#include "shm/shape.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kMaxSliceNumel = 1ull << 30;
constexpr uint32_t kMaxSessions = 4096;

// Sets one field from a TOML value; false when the type or the range does not fit.
using Setter = std::function<bool(const toml::node&)>;

template <typename Unsigned>
Setter whole_number(Unsigned* field) {
  return [field](const toml::node& node) {
    const auto value = node.value_exact<int64_t>();
    if (!value || *value < 0 ||
        static_cast<uint64_t>(*value) > std::numeric_limits<Unsigned>::max()) {
      return false;
    }
    *field = static_cast<Unsigned>(*value);
    return true;
  };
}

Setter text(std::string* field) {
  return [field](const toml::node& node) {
    const auto value = node.value_exact<std::string>();
    if (value) *field = *value;
    return value.has_value();
  };
}

// Bytes: "40GiB" or a plain number.
Setter bytes(std::string* field) {
  return [field](const toml::node& node) {
    const auto number = node.value_exact<int64_t>();
    if (number && *number >= 0) *field = std::to_string(*number);
    return (number && *number >= 0) || text(field)(node);
  };
}

std::map<std::string, Setter> setters(Config* config) {
  return {
      {"runtime_dir", text(&config->runtime_dir)},
      {"workers", whole_number(&config->workers)},
      {"memory_limit", bytes(&config->memory_limit)},
      {"memory_margin", bytes(&config->memory_margin)},
      {"memory_room", bytes(&config->memory_room)},
      {"slice_numel", whole_number(&config->slice_numel)},
      {"max_sessions", whole_number(&config->max_sessions)},
      {"max_jobs", whole_number(&config->max_jobs)},
      {"attach_timeout_s", whole_number(&config->attach_timeout_s)},
      {"log_level", text(&config->log_level)},
      {"exit_when_idle",
       [config](const toml::node& node) {
         const auto value = node.value<double>();
         if (value) config->exit_when_idle = *value;
         return value.has_value();
       }},
      {"no_bandwidth_probe",
       [config](const toml::node& node) {
         const auto value = node.value_exact<bool>();
         if (value) config->no_bandwidth_probe = *value;
         return value.has_value();
       }},
  };
}

void add_options(CLI::App& app, Config* config, std::string* file) {
  app.add_option("--config", *file, "TOML file with the names below, as some_name");
  app.add_option("--runtime-dir", config->runtime_dir,
                 "folder of sockets, lock and log [ELIXIR_RUNTIME_DIR, else one of this user]");
  app.add_option("--workers", config->workers, "worker threads; 0: as many as gain bandwidth");
  app.add_option("--memory-limit", config->memory_limit,
                 "bytes for all sessions, e.g. 40GiB [what the machine has]");
  app.add_option("--memory-margin", config->memory_margin, "bytes left free on the machine");
  app.add_option(
      "--memory-room", config->memory_room,
      "bytes that the machine has for all sessions where its MemAvailable says less than "
      "the truth: a virtual machine whose memory grows with use [ELIXIR_MEMORY_ROOM]");
  app.add_option("--slice-numel", config->slice_numel, "parameters a worker takes at a time");
  app.add_option("--max-sessions", config->max_sessions, "sessions at once, one a rank");
  app.add_option("--max-jobs", config->max_jobs, "jobs at once");
  app.add_option("--exit-when-idle", config->exit_when_idle,
                 "end after so many seconds without a session; 0: never");
  app.add_option("--attach-timeout-s", config->attach_timeout_s,
                 "seconds in which all ranks of a job must attach");
  app.add_flag("--no-bandwidth-probe", config->no_bandwidth_probe,
               "start at once, with a worker per processor");
  app.add_option("--log-level", config->log_level, "debug, info, warn or error");
}

}  // namespace

Status apply_toml(const std::string& path, Config* config) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& failure) {
    return error(Code::kInvalidArgument, "{}:{}: {}", path, failure.source().begin.line,
                 failure.description());
  }
  const std::map<std::string, Setter> known = setters(config);
  std::vector<std::string> names;
  for (const auto& [name, setter] : known) names.push_back(name);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const auto setter = known.find(name);
    if (setter == known.end()) {
      const std::string nearest = nearest_name(name, names);
      return error(Code::kInvalidArgument, "{}:{}: unknown key '{}'{}", path,
                   node.source().begin.line, name,
                   nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
    }
    if (!setter->second(node)) {
      return error(Code::kInvalidArgument, "{}:{}: '{}' has a value of the wrong type or range",
                   path, node.source().begin.line, name);
    }
  }
  return Status();
}

Status finish_config(Config* config) {
  if (!config->memory_limit.empty()) {
    const Result<uint64_t> limit = parse_bytes(config->memory_limit);
    if (!limit.ok())
      return error(Code::kInvalidArgument, "memory_limit: {}", limit.status().message());
    config->memory_limit_bytes = *limit;
  }
  const Result<uint64_t> margin = parse_bytes(config->memory_margin);
  if (!margin.ok())
    return error(Code::kInvalidArgument, "memory_margin: {}", margin.status().message());
  config->memory_margin_bytes = *margin;
  config->memory_room_bytes = free_memory_setting();
  if (!config->memory_room.empty()) {
    const Result<uint64_t> room = parse_bytes(config->memory_room);
    if (!room.ok())
      return error(Code::kInvalidArgument, "memory_room: {}", room.status().message());
    config->memory_room_bytes = *room;
  }
  if (config->workers > shm::kMaxWorkers) {
    return error(Code::kInvalidArgument, "workers is {}; at most {} are possible", config->workers,
                 shm::kMaxWorkers);
  }
  if (config->slice_numel == 0 || config->slice_numel > kMaxSliceNumel) {
    return error(Code::kInvalidArgument, "slice_numel is {}; 1 to {} are possible",
                 config->slice_numel, kMaxSliceNumel);
  }
  if (config->max_sessions == 0 || config->max_sessions > kMaxSessions || config->max_jobs == 0) {
    return error(Code::kInvalidArgument,
                 "max_sessions is {} (1 to {} are possible), max_jobs {} (at least 1)",
                 config->max_sessions, kMaxSessions, config->max_jobs);
  }
  if (!(config->exit_when_idle >= 0) || config->attach_timeout_s == 0) {
    return error(Code::kInvalidArgument,
                 "exit_when_idle is {} (at least 0), attach_timeout_s {} (at least 1)",
                 config->exit_when_idle, config->attach_timeout_s);
  }
  const std::map<std::string, LogLevel> levels = {{"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warn", LogLevel::kWarn},
                                                  {"error", LogLevel::kError}};
  const auto level = levels.find(config->log_level);
  if (level == levels.end()) {
    return error(Code::kInvalidArgument,
                 "log_level is '{}'; debug, info, warn or error are possible", config->log_level);
  }
  config->least_log_level = level->second;
  return Status();
}

int read_config(CLI::App& app, int argc, const char* const* argv, Config* config) {
  init_cli(app);
  std::string file;
  add_options(app, config, &file);
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  if (!file.empty()) {
    Config from_file;
    if (const Status status = apply_toml(file, &from_file); !status.ok()) {
      return report_failure(app, status);
    }
    // The file is the ground, the flags go over it: parse them once more on top.
    *config = from_file;
    CLI::App again{app.get_description(), app.get_name()};
    init_cli(again);
    add_options(again, config, &file);
    if (const int code = parse_cli(again, argc, argv); code >= 0) return code;
  }
  if (const Status status = finish_config(config); !status.ok()) return report_failure(app, status);
  return -1;
}

}  // namespace elixir::daemon
