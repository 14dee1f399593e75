#include "daemon/config.h"

#define TOML_HEADER_ONLY 0
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/cli.h"
#include "base/units.h"
#include "shm/shape.h"

namespace elixir::daemon {
namespace {

// Of a user's: each slice takes 40 bytes of elixird's heap.
constexpr uint64_t kMinSliceNumel = 4096;
constexpr uint64_t kMaxSliceNumel = 1ull << 30;

// Bytes: "40GiB" or a plain number.
void add_memory(CLI::App& app, const std::string& flag, uint64_t& field, const char* shown,
                const char* help) {
  app.add_option_function<std::string>(
         flag,
         [&field, flag](const std::string& text) {
           const Result<uint64_t> parsed = parse_bytes(text);
           if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
           field = *parsed;
         },
         help)
      ->default_str(shown);
}

void add_slice_numel(CLI::App& app, uint64_t& field) {
  app.add_option("--slice-numel", field,
                 fmt::format("parameters a worker takes at a time, at least {}", kMinSliceNumel))
      ->check([](const std::string& text) {
        uint64_t numel = 0;
        const bool small = CLI::detail::lexical_cast(text, numel) && numel < kMinSliceNumel;
        return small ? fmt::format("slice_numel is {}; {} to {} are possible: leave it out for {}",
                                   numel, kMinSliceNumel, kMaxSliceNumel, Config().slice_numel)
                     : std::string();
      });
  // Tests cut small chunks into several slices. Not in the help.
  app.add_option("--test-slice-numel", field)->group("");
}

void add_options(CLI::App& app, Config* config, std::string* file) {
  app.add_option("--config", *file, "TOML file with the names below, as some_name");
  app.add_option("--runtime-dir", config->runtime_dir,
                 "folder of sockets, lock and log [ELIXIR_RUNTIME_DIR, else one of this user]");
  app.add_option("--launch", config->launch,
                 "the launch that started it, for its status; without: a service");
  app.add_option("--workers", config->workers, "worker threads; 0: as many as gain bandwidth");
  add_memory(app, "--memory-limit", config->memory_limit_bytes, "",
             "bytes for all sessions, e.g. 40GiB [what the machine has]");
  add_memory(app, "--memory-margin", config->memory_margin_bytes, "256MiB",
             "bytes left free on the machine");
  add_memory(app, "--memory-room", config->memory_room_bytes, "",
             "bytes that the machine has for all sessions where its MemAvailable says less than "
             "the truth: a virtual machine whose memory grows with use [ELIXIR_MEMORY_ROOM]");
  add_slice_numel(app, config->slice_numel);
  app.add_option("--max-sessions", config->max_sessions, "sessions at once, one a rank");
  app.add_option("--max-jobs", config->max_jobs, "jobs at once");
  app.add_option("--exit-when-idle", config->exit_when_idle,
                 "end after so many seconds without a session; 0: never");
  app.add_option("--attach-timeout-s", config->attach_timeout_s,
                 "seconds in which all ranks of a job must attach");
  app.add_option("--checkpoint-threads", config->checkpoint_threads,
                 "threads that write a checkpoint, or read one");
  add_memory(app, "--checkpoint-rate", config->checkpoint_rate, "0",
             "bytes a second that a save may write, e.g. 500MiB; 0: as many as the disk takes");
  app.add_flag("--no-bandwidth-probe", config->no_bandwidth_probe,
               "start at once, with a worker per processor");
  add_choice(app, "--log-level", config->log_level, kLogLevelNames, "debug, info, warn or error");
}

// As a command line has it; nothing for a type that no limit has.
std::optional<std::string> value_text(const toml::node& node) {
  if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
  if (const auto whole = node.value_exact<int64_t>()) return std::to_string(*whole);
  if (const auto real = node.value_exact<double>()) return fmt::format("{}", *real);
  return node.value_exact<std::string>();
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
  for (const auto& [key, node] : table) {
    CLI::App app("", "elixird");
    std::string no_file;
    add_options(app, config, &no_file);
    std::string flag = "--" + std::string(key.str());
    std::replace(flag.begin() + 2, flag.end(), '_', '-');
    const auto failure = [&path, line = node.source().begin.line](const std::string& text) {
      return error(Code::kInvalidArgument, "{}:{}: {}", path, line, text);
    };
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (option == nullptr || flag == "--config" || flag == "--help")
      return failure(explain_unknown(app, flag));
    const std::optional<std::string> value = value_text(node);
    if (!value || node.is_boolean() != (option->get_expected_max() == 0)) {
      return failure(fmt::format("'{}' has a value of the wrong type", key.str()));
    }
    try {
      app.parse(std::vector<std::string>{flag + "=" + *value});
    } catch (const CLI::ParseError& refused) {
      return failure(refused.what());
    }
  }
  return Status();
}

Status check_config(const Config& config) {
  if (config.workers > shm::kMaxWorkers) {
    return error(Code::kInvalidArgument, "workers is {}; at most {} are possible", config.workers,
                 shm::kMaxWorkers);
  }
  if (config.slice_numel == 0 || config.slice_numel > kMaxSliceNumel) {
    return error(Code::kInvalidArgument, "slice_numel is {}; 1 to {} are possible",
                 config.slice_numel, kMaxSliceNumel);
  }
  if (config.max_sessions == 0 || config.max_sessions > kMaxSessions || config.max_jobs == 0) {
    return error(Code::kInvalidArgument,
                 "max_sessions is {} (1 to {} are possible), max_jobs {} (at least 1)",
                 config.max_sessions, kMaxSessions, config.max_jobs);
  }
  if (config.checkpoint_threads == 0 || config.checkpoint_threads > kMaxCheckpointThreads) {
    return error(Code::kInvalidArgument, "checkpoint_threads is {}; 1 to {} are possible",
                 config.checkpoint_threads, kMaxCheckpointThreads);
  }
  if (!(config.exit_when_idle >= 0) || config.attach_timeout_s == 0) {
    return error(Code::kInvalidArgument,
                 "exit_when_idle is {} (at least 0), attach_timeout_s {} (at least 1)",
                 config.exit_when_idle, config.attach_timeout_s);
  }
  return Status();
}

int read_config(CLI::App& app, int argc, const char* const* argv, Config* config) {
  init_cli(app);
  std::string file;
  add_options(app, config, &file);
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  if (!file.empty()) {
    *config = Config();
    if (const Status status = apply_toml(file, config); !status.ok()) {
      return report_failure(app, status);
    }
    // The file is the ground, the flags go over it: parse them once more on top.
    CLI::App again{app.get_description(), app.get_name()};
    init_cli(again);
    add_options(again, config, &file);
    if (const int code = parse_cli(again, argc, argv); code >= 0) return code;
  }
  if (const Status status = check_config(*config); !status.ok()) return report_failure(app, status);
  return -1;
}

}  // namespace elixir::daemon
