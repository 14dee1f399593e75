#include "models/run_start.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/fd.h"
#include "base/nearest.h"
#include "base/text_file.h"
#include "base/units.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/listing.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_folder.h"
#include "planner/models/config_json.h"

namespace elixir {
namespace {

using checkpoints::Latest;
using checkpoints::ListedCheckpoint;
using planner::TransformerConfig;

bool is_file(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

Status cannot_use(const std::string& folder, int number) {
  return error(Code::kInvalidArgument,
               "--checkpoints {}: {}; give a folder that you may write to, in a folder that exists",
               folder, std::strerror(number));
}

// The open folder, which is made where it is missing.
Result<UniqueFd> open_checkpoints(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return cannot_use(folder, errno);
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::faccessat(fd.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return cannot_use(folder, errno);
  }
  return fd;
}

// Whether the run, which begins behind `first_step`, would come upon a checkpoint that is there.
Status check_free(const std::vector<ListedCheckpoint>& all, const CheckpointOptions& options,
                  uint64_t first_step) {
  if (all.empty() || all.back().step <= first_step) return {};
  const auto newest =
      std::find_if(all.rbegin(), all.rend(), [](const auto& listed) { return listed.valid; });
  if (newest == all.rend() || newest->step <= first_step) {
    return error(Code::kInvalidArgument,
                 "--checkpoints {}: {} exists, and it is not a complete checkpoint ({}): move it "
                 "away, or give another folder, so that nothing is overwritten",
                 options.folder, all.back().path, all.back().why);
  }
  if (!options.resumes()) {
    return error(
        Code::kInvalidArgument,
        "--checkpoints {}: there are checkpoints of another run, the newest of step {}: go "
        "on from it with --resume latest, or give another folder",
        options.folder, newest->step);
  }
  return error(Code::kInvalidArgument,
               "--checkpoints {}: it has a checkpoint of step {}, and --resume {} continues after "
               "step {}: give another folder, so that nothing is overwritten, or --resume latest",
               options.folder, newest->step, options.resume, first_step);
}

// What lies beside the tensors, in every rank's name: a rank must not find its own part damaged
// when others load already. Larger files are those of another program.
Status check_small_files(const std::string& path) {
  constexpr uint64_t kMostBytes = uint64_t{64} << 20;
  const Result<checkpoints::StoredFolder> folder = checkpoints::open_stored_folder(path);
  if (!folder.ok()) return folder.status();
  if (!folder->manifest) return error(Code::kBadInput, "its manifest is gone");
  for (const checkpoints::ManifestFile& file : folder->manifest->files) {
    if (file.name.ends_with(".safetensors") || file.bytes > kMostBytes) continue;
    const auto read = checkpoints::read_stored_file(*folder, file.name, kMostBytes);
    if (!read.ok()) return read.status();
  }
  return {};
}

// The newest that can be gone on from, as far as this is known before its tensors are read.
Result<Latest> newest_whole(const std::string& folder, std::vector<ListedCheckpoint> all,
                            const std::vector<DamagedCheckpoint>& damaged) {
  const auto pass_over = [](ListedCheckpoint& listed, const std::string& why) {
    listed.valid = false;
    listed.why = why;
  };
  for (ListedCheckpoint& listed : all) {
    for (const DamagedCheckpoint& one : damaged) {
      if (one.path == listed.path) pass_over(listed, one.why);
    }
  }
  while (true) {
    Result<Latest> latest = checkpoints::latest_of(all, folder);
    if (!latest.ok()) return latest;
    const Status read = check_small_files(latest->checkpoint.path);
    if (read.ok()) return latest;
    pass_over(all[all.size() - 1 - latest->passed_over.size()], read.message());
  }
}

Result<RunStart> start_at_latest(const CheckpointOptions& options,
                                 std::vector<ListedCheckpoint> all,
                                 const std::vector<DamagedCheckpoint>& damaged) {
  RunStart start{.folder = options.init};
  if (all.empty()) {
    start.said.push_back(fmt::format("no checkpoint in {} yet: the run begins", options.folder));
    return start;
  }
  const Result<Latest> latest = newest_whole(options.folder, std::move(all), damaged);
  if (!latest.ok()) {
    return error(
        latest.status().code(),
        "--resume latest: {}; restore a copy of one, or start again with another --checkpoints",
        latest.status().message());
  }
  for (const ListedCheckpoint& passed : latest->passed_over) {
    start.said.push_back(fmt::format("{} is passed over: {}", passed.path, passed.why));
    start.damaged.push_back(passed.path);
  }
  start.folder = latest->checkpoint.path;
  start.resumes = true;
  start.step = latest->checkpoint.step;
  start.said.push_back(
      fmt::format("continuing from {}, {}", start.folder, format_bytes(latest->checkpoint.bytes)));
  return start;
}

// Why what --resume names is none, which has no manifest.
Status no_checkpoint(const std::string& named, const std::string& why) {
  struct stat about {};
  const std::string words[] = {"latest", "none"};
  const std::string nearest = nearest_name(named, words);
  if (::stat(named.c_str(), &about) != 0 && errno == ENOENT && !nearest.empty()) {
    return error(Code::kBadInput, "--resume {}: this folder does not exist; did you mean '{}'?",
                 named, nearest);
  }
  const Result<Latest> latest = checkpoints::latest_checkpoint(named);
  if (latest.ok()) {
    return error(Code::kBadInput,
                 "--resume {}: it is a folder of checkpoints, of which the newest valid one is {}: "
                 "give that one, or --checkpoints {} --resume latest",
                 named, latest->checkpoint.path, named);
  }
  return error(Code::kBadInput,
               "--resume {}: it is not a checkpoint ({}); to begin with weights alone, as of a "
               "Hugging Face folder, use --init",
               named, why);
}

// The manifest's step. Whether the folder is whole is found out when it is loaded.
Result<uint64_t> step_of(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return no_checkpoint(folder, std::strerror(errno));
  const Result<std::optional<checkpoints::Manifest>> read = checkpoints::read_manifest(fd.get());
  if (!read.ok()) {
    return error(Code::kBadInput, "--resume {}: {}", folder, read.status().message());
  }
  const std::optional<checkpoints::Manifest>& manifest = *read;
  if (!manifest) {
    return no_checkpoint(folder, fmt::format("there is no {}", checkpoints::kManifestName));
  }
  if (manifest->states_alone) {
    return error(Code::kBadInput,
                 "--resume {}: it holds states alone, without the model (SaveOptions::model): the "
                 "program that wrote it resumes from it, beside the model's own folder",
                 folder);
  }
  if (manifest->optimizer_states) return manifest->step;
  return error(Code::kBadInput,
               "--resume {}: it holds the model alone, without the optimizer's states, as --export "
               "writes it: begin with its weights by --init {}",
               folder, folder);
}

// Rank 0 keeps the lock from here to the run's end: were it given up in between, another job could
// go on from the same checkpoint. Others wait until it has it, and find what it finds: it changes
// nothing before all of them have loaded. `again`: it has it already.
Result<checkpoints::HeldLock> take_folder(int folder, double wait_s, bool again,
                                          const LaunchEnvironment& environment) {
  if (environment.rank > 0) {
    const double patience_s = 2 * wait_s;  // rank 0 is to say first why it waits in vain
    const Status held =
        again ? Status() : checkpoints::await_holder(folder, environment.job, patience_s);
    if (held.ok()) return Result<checkpoints::HeldLock>(nullptr);
    return Status(held.code(), held.message() + environment.and_why());
  }
  Result<checkpoints::HeldLock> lock = checkpoints::hold_folder(folder, wait_s);
  if (lock.ok() && environment.world_size > 1 && !again) {
    ELIXIR_RETURN_IF_ERROR(checkpoints::write_holder((*lock)->get(), environment.job));
  }
  return lock;
}

// ---- the same model ----

std::string_view family_name(planner::Family family) {
  switch (family) {
    case planner::Family::kGpt2:
      return "GPT-2";
    case planner::Family::kOpt:
      return "OPT";
    case planner::Family::kNeoX:
      return "GPT-NeoX";
    case planner::Family::kPhi:
      return "Phi";
    case planner::Family::kLlama:
      break;
  }
  return "Llama";
}

std::string difference(const TransformerConfig& stored, const TransformerConfig& wanted) {
  const auto differs = [](const char* what, auto a, auto b) {
    return a == b ? std::string() : fmt::format("its {} is {} and not {}", what, a, b);
  };
  for (const std::string& text : {
           differs("family", family_name(stored.family), family_name(wanted.family)),
           differs("vocabulary", stored.vocabulary, wanted.vocabulary),
           differs("context", stored.context, wanted.context),
           differs("width", stored.width, wanted.width),
           differs("number of layers", stored.layers, wanted.layers),
           differs("number of heads", stored.heads, wanted.heads),
           differs("number of heads of keys", stored.kv_heads, wanted.kv_heads),
           differs("width of MLPs", stored.mlp_width, wanted.mlp_width),
           differs("tied projection", stored.tied, wanted.tied),
           differs("norms' epsilon", stored.norm_eps, wanted.norm_eps),
           differs("width of heads", stored.head_numel(), wanted.head_numel()),
           differs("base of rotary positions", stored.rotary.base, wanted.rotary.base),
           differs("window", stored.window, wanted.window),
           differs("padding token (-1: none)", stored.padding_token, wanted.padding_token),
           differs("number of experts", stored.experts, wanted.experts),
       }) {
    if (!text.empty()) return text;
  }
  TransformerConfig same = stored;
  same.name = wanted.name;
  same.lr = wanted.lr;
  same.init_deviation = wanted.init_deviation;
  same.head_width = wanted.head_width;
  return same == wanted ? "" : "it is of another type";
}

}  // namespace

Result<RunStart> find_start(const CheckpointOptions& options, double lock_wait_s,
                            const std::vector<DamagedCheckpoint>& damaged,
                            const LaunchEnvironment& environment) {
  RunStart start{.folder = options.init};
  if (options.resumes() && options.resume != "latest") {
    const Result<uint64_t> step = step_of(options.resume);
    if (!step.ok()) return step.status();
    start = {.folder = options.resume,
             .resumes = true,
             .step = *step,
             .said = {fmt::format("continuing from {}, step {}, as --resume says", options.resume,
                                  *step)}};
  }
  if (options.folder.empty()) return start;
  const Result<UniqueFd> folder = open_checkpoints(options.folder);
  if (!folder.ok()) return folder.status();
  Result<checkpoints::HeldLock> lock =
      take_folder(folder->get(), lock_wait_s, /*again=*/!damaged.empty(), environment);
  if (!lock.ok()) return lock.status();
  if (checkpoints::has_manifest(folder->get())) {
    return error(Code::kInvalidArgument,
                 "--checkpoints {}: it is a checkpoint itself; give the folder it lies in, or "
                 "--resume {} to continue from it",
                 options.folder, options.folder);
  }
  const auto all = checkpoints::list_checkpoints(options.folder);
  if (!all.ok()) return all.status();
  if (options.resume == "latest") {
    Result<RunStart> latest = start_at_latest(options, *all, damaged);
    if (!latest.ok()) return latest;
    start = std::move(*latest);
  } else {
    ELIXIR_RETURN_IF_ERROR(check_free(*all, options, start.step));
  }
  start.lock = std::move(*lock);
  return start;
}

Status check_resumed(const CheckpointOptions& options) {
  if (!options.resumes() || options.resume == "latest") return {};
  return step_of(options.resume).status();
}

Result<std::string> set_aside(const std::string& path) {
  const size_t slash = path.rfind('/') + 1;
  const std::string parent = path.substr(0, slash), name = path.substr(slash);
  const UniqueFd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(Code::kBadInput, parent);
  std::string aside = "damaged-" + name;
  struct stat about {};
  for (int i = 2; ::fstatat(fd.get(), aside.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0; ++i) {
    aside = fmt::format("damaged-{}-{}", name, i);
  }
  ELIXIR_RETURN_IF_ERROR(checkpoints::rename_to_new(fd.get(), name, aside));
  return parent + aside;
}

Status check_bytes(const std::string& folder, uint32_t threads) {
  const Result<checkpoints::StoredFolder> stored = checkpoints::open_stored_folder(folder);
  return stored.ok() ? checkpoints::verify(*stored, threads, nullptr) : stored.status();
}

Status with_older_start(const Error& failure, const RunStart& start) {
  const Status plain(failure.code(), failure.what());
  if (!start.resumes || failure.code() != Code::kBadInput) return plain;
  const Result<ListedCheckpoint> listed = checkpoints::list_checkpoint(start.folder);
  if (!listed.ok() || listed->good.value_or(true)) {
    return plain;
  }
  const size_t end = start.folder.find_last_not_of('/');
  const size_t slash = start.folder.find_last_of('/', end);
  const auto all = checkpoints::list_checkpoints(
      slash == std::string::npos ? "." : start.folder.substr(0, std::max<size_t>(slash, 1)));
  const ListedCheckpoint* const older = all.ok() ? checkpoints::newest_good(*all) : nullptr;
  if (older == nullptr) return plain;
  return error(plain.code(), "{}; continue from {}: --resume {}, with another --checkpoints",
               plain.message(), older->path, older->path);
}

std::string config_path_of(const CheckpointOptions& options) {
  constexpr const char* kConfig = "/config.json";
  std::string folder = options.init;
  if (options.resume == "latest") {
    const auto all = checkpoints::list_checkpoints(options.folder);
    const Result<Latest> latest = all.ok() ? newest_whole(options.folder, *all, {}) : all.status();
    if (latest.ok()) folder = latest->checkpoint.path;
  } else if (options.resumes()) {
    folder = options.resume;
  }
  return folder.empty() || !is_file(folder + kConfig) ? "" : folder + kConfig;
}

Status check_same_model(const std::string& folder, const TransformerConfig& config) {
  const std::string path = folder + "/config.json";
  if (!is_file(path)) return {};
  const Result<std::string> text = planner::read_config_file(path);
  if (!text.ok()) return text.status();
  const auto named = [&](const Status& status) {
    return error(Code::kBadInput, "{}: {}", folder, status.message());
  };
  const Status computed = planner::check_computed(*text);
  if (!computed.ok()) return named(computed);
  const auto stored = planner::transformer_from_config_json(*text);
  if (!stored.ok()) return named(stored.status());
  const std::string other = difference(*stored, config);
  if (other.empty()) return {};
  return error(
      Code::kBadInput,
      "{} holds another model ({}) than {}: {}; leave out --model and --config to take the "
      "folder's",
      folder, stored->name, config.name, other);
}

}  // namespace elixir
