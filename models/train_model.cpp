#include "models/train_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>

#include "base/compute_type_names.h"
#include "base/nearest.h"
#include "base/text_file.h"
#include "checkpoint/hub_cache.h"
#include "checkpoint/stored_folder.h"
#include "models/run_record.h"
#include "models/run_start.h"
#include "models/token_text.h"
#include "planner/activations.h"
#include "planner/models/config_json.h"
#include "planner/models/stored_type.h"
#include "planner/plan/plan_json.h"

namespace elixir {
namespace {

using checkpoints::missing_folder_remedy;
using checkpoints::snapshot_of;

// Where the weights come from, as far as it is known before anything is started.
struct Weights {
  std::string config_path = {};  // of their folder's config.json; "": there is none
  std::string folder = {};       // "": they are drawn
  bool from_init = false;        // else of the checkpoint that is resumed
};

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash);
}

Weights weights_of(const CheckpointOptions& options) {
  Weights weights{.config_path = config_path_of(options)};
  const bool resumes = options.resumes() && options.resume != "latest";
  weights.from_init =
      !options.init.empty() && !resumes &&
      (weights.config_path.empty() || weights.config_path == options.init + "/config.json");
  weights.folder = weights.from_init ? options.init
                   : resumes         ? options.resume
                                     : folder_of(weights.config_path);
  return weights;
}

Status check_init_folder(const std::string& folder) {
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return errno_status(Code::kBadInput, "--init " + folder);
  }
  if (S_ISDIR(about.st_mode)) return {};
  if (about.st_mode != 0) {
    const std::string parent = folder_of(folder);
    return error(Code::kBadInput, "--init {}: it is a file; give its folder: --init {}", folder,
                 parent.empty() ? "." : parent);
  }
  const std::string remedy = missing_folder_remedy(folder);
  return error(
      Code::kBadInput, "--init {}: this folder does not exist{}", folder,
      remedy.empty() ? "; give the folder of a Hugging Face model or of a checkpoint" : remedy);
}

Status no_config(const std::string& folder) {
  const std::string snapshot = snapshot_of(folder);
  if (!snapshot.empty()) {
    return error(Code::kBadInput,
                 "--init {}: it is a folder of the hub's cache, and the model is in its snapshot: "
                 "give --init {}",
                 folder, snapshot);
  }
  return error(Code::kBadInput,
               "--init {}: it has no config.json that names the model; give the folder of a "
               "Hugging Face model or of a checkpoint, or name the model with --model or --config",
               folder);
}

// GPT-2's names may leave out "gpt2-". An unknown name is reported as it was typed.
Status expand_name(std::string& name) {
  if (name.empty() || planner::transformer_config(name).ok()) return {};
  const std::string longer = "gpt2-" + name;
  if (planner::transformer_config(longer).ok()) {
    name = longer;
    return {};
  }
  struct stat about {};
  if (::stat(name.c_str(), &about) == 0) {
    return error(Code::kInvalidArgument,
                 "--model {}: it is the name of a known model, not a path; --init {} begins with "
                 "the weights of a folder, --config {} with its sizes alone",
                 name, name, name);
  }
  if (name.find('/') != name.npos) {
    const std::string remedy = missing_folder_remedy(name);
    return error(Code::kInvalidArgument,
                 "--model {}: it is the name of a known model (elixir-train --help lists them); "
                 "for another one give its folder with --init{}",
                 name, remedy);
  }
  const std::vector<std::string> names = planner::transformer_names();
  std::string nearest = nearest_name(longer, names);
  if (nearest.empty() || name.find('-') != name.npos) nearest = nearest_name(name, names);
  return error(Code::kInvalidArgument, "--model: no model is called '{}'; {}", name,
               nearest.empty() ? "elixir-train --help lists all names"
                               : fmt::format("did you mean '{}'?", nearest));
}

// What is wrong with the config.json that --resume or --init has brought, and not --config.
Status of_weights(const Status& status, const CheckpointOptions& checkpoints) {
  constexpr std::string_view kFlag = "--config ";
  std::string_view why = status.message();
  if (why.starts_with(kFlag)) why.remove_prefix(kFlag.size());
  const std::string flag =
      checkpoints.resumes() ? "--resume " + checkpoints.resume : "--init " + checkpoints.init;
  return error(status.code(), "{}: {}", flag, why);
}

// Of a model that is refused: what else is wrong is told against its sizes.
void keep_sizes(TrainOptions& options) {
  options.model_refused = true;
  const std::string& path = options.model.config_path;
  const Result<std::string> text =
      path.empty() ? Result<std::string>("") : planner::read_config_file(path);
  if (!text.ok()) return;
  if (auto sizes = planner::sizes_of_refused_config(*text)) options.config = std::move(*sizes);
}

// Whether text can be trained on, and what is done without --data. Of a run that goes on its record
// says it; a checkpoint of before says nothing.
void choose_data(const Weights& weights, const std::string& record, TrainOptions& options) {
  const bool somebodys = !options.model.config_path.empty() || !options.checkpoints.init.empty();
  const bool goes_on = !weights.folder.empty() && !weights.from_init;
  const RecordedData so_far = goes_on ? recorded_data(record) : RecordedData::kNone;
  const bool bytes = options.config.vocabulary == kBytesVocabulary;
  options.bytes |= so_far == RecordedData::kDefaultText || so_far == RecordedData::kText;
  options.needs_data = goes_on && so_far != RecordedData::kNone
                           ? so_far != RecordedData::kDefaultText
                           : somebodys && !(goes_on && bytes);
  options.bytes_are_tokens = bytes || !(somebodys || goes_on);
}

Status find_model(const Weights& weights, TrainOptions& options) {
  planner::ModelRequest& model = options.model;
  const bool named = !model.model.empty() || !model.config_path.empty();
  const bool stored = !named && !weights.config_path.empty();
  if (!named && !stored && weights.from_init) return no_config(weights.folder);
  if (stored) model.config_path = weights.config_path;
  if (!named && !stored) model.model = kDefaultModel;
  ELIXIR_RETURN_IF_ERROR(expand_name(model.model));
  Result<planner::TransformerConfig> config = planner::config_of(model);
  if (!config.ok()) {
    keep_sizes(options);
    return stored ? of_weights(config.status(), options.checkpoints) : config.status();
  }
  options.config = std::move(*config);
  // A config.json has the name alone.
  const auto known = planner::transformer_config(options.config.name);
  if (!model.config_path.empty() && known.ok()) options.config.lr = known->lr;
  return {};
}

Result<std::optional<planner::Plan>> read_plan(const std::string& path) {
  if (path.empty()) return std::optional<planner::Plan>();
  const Result<std::string> text = read_text_file(path);
  if (!text.ok()) return error(text.status().code(), "--plan {}", text.status().message());
  Result<planner::Plan> plan = planner::plan_from_json(*text);
  if (plan.ok()) return std::optional<planner::Plan>(std::move(*plan));
  return error(plan.status().code(), "--plan {}: {}", path, plan.status().message());
}

bool is_of_plan(const Activations& asked, const planner::Plan& plan) {
  using enum Activations::Mode;
  if (asked.mode == kAuto) return true;
  if (!plan.checkpointed) return asked.mode == kKeep;
  return is_plan_for(asked, plan.region_plan) &&
         (asked.mode != kKeep || plan.region_plan.regions > 0);
}

std::string flag_of(const Activations& activations) {
  using enum Activations::Mode;
  if (activations.mode == kRecompute) return "--checkpoint-activations";
  if (activations.mode == kKeep) return "--no-checkpoint-activations";
  return "--activations " + to_text(activations);
}

void follow_plan(const ModelWords& words, const planner::Plan& plan, TrainOptions& options,
                 Problems& problems) {
  ComputeType& type = options.model.dtype;
  if (words.gives_dtype && type != plan.type) {
    problems.add(error(Code::kInvalidArgument,
                       "--dtype {0}: the plan {1} is for {2}; leave out --dtype, or repeat its "
                       "'elixirctl plan' with --dtype {0}",
                       compute_type_name(type), options.plan_file, compute_type_name(plan.type)));
  }
  type = plan.type;
  bool& checkpointed = options.model.checkpoint_activations;
  if (words.activations && !is_of_plan(*words.activations, plan)) {
    problems.add(error(Code::kInvalidArgument,
                       "{0}: the plan {1} is {2} activation checkpointing{3}; leave out {0}, or "
                       "repeat its 'elixirctl plan' with {0}",
                       flag_of(*words.activations), options.plan_file,
                       plan.checkpointed ? "with" : "without",
                       plan.region_plan.keeps() || plan.region_plan.sends_any()
                           ? ", and some blocks keep or send more than their input"
                           : ""));
  }
  checkpointed = plan.checkpointed;
  options.run.activations = {};
  options.said.push_back(fmt::format("dtype {}, {} activation checkpointing, as the plan {} says",
                                     compute_type_name(type), checkpointed ? "with" : "without",
                                     options.plan_file));
}

void choose_type(const ModelWords& words, const Weights& weights, TrainOptions& options) {
  if (words.gives_dtype) return;
  const std::string path = !weights.config_path.empty() ? weights.config_path
                           : weights.from_init          ? weights.folder + "/config.json"
                                                        : options.model.config_path;
  if (path.empty()) return;
  const std::optional<ComputeType> stored = planner::stored_type(path);
  if (!stored) return;
  options.model.dtype = *stored;
  if (options.checkpoints.resumes()) return;
  const bool scaled = *stored == ComputeType::kFp16;
  options.said.push_back(fmt::format("dtype {}, the type of {}{} (--dtype sets another)",
                                     compute_type_name(*stored), path,
                                     scaled ? ", with a dynamic loss scale" : ""));
}

Status choose_lr(const Weights& weights, const std::string& record, TrainOptions& options) {
  double& lr = options.adamw.lr;
  if (lr != 0) return {};
  const double own = options.config.lr;
  if (weights.from_init) {
    lr = kFineTuningLr;
    options.said.push_back(fmt::format(
        "lr {}, the default for weights that are trained already (--lr sets another)", lr));
  } else if (!weights.folder.empty()) {
    lr = recorded_lr(record).value_or(own);
  } else if (own != 0) {
    lr = own;
  } else {
    lr = planner::lr_of_size(planner::transformer_numel(options.config));
    options.said.push_back(fmt::format(
        "lr {}, GPT-3's for the nearest size, for weights that are drawn (--lr sets another)", lr));
  }
  if (lr != 0) return {};
  return error(Code::kInvalidArgument,
               "--lr: the checkpoint {} does not say with which rate it was trained; give the rate "
               "of its run, as --lr 3e-4",
               weights.folder);
}

}  // namespace

void understand_model(const ModelWords& words, TrainOptions& options, Problems& problems) {
  const Weights weights = weights_of(options.checkpoints);
  options.model.model = words.name;
  const bool named = !words.name.empty() || !options.model.config_path.empty();
  const bool resumes = options.checkpoints.init.empty();  // with both flags another check speaks
  const Status there = weights.from_init ? check_init_folder(weights.folder)
                       : resumes         ? check_resumed(options.checkpoints)
                                         : Status();
  problems.add(there);
  // Another model than the missing one is not looked at.
  if (there.ok() || named) problems.add(find_model(weights, options));
  const std::string record = recorded_program(weights.folder);
  choose_data(weights, record, options);
  options.run.activations = words.activations.value_or(Activations());
  using enum Activations::Mode;
  const Activations::Mode mode = options.run.activations.mode;
  // kAuto: it depends on the device, which is not known yet (models/begin_run.cpp).
  options.model.checkpoint_activations = mode != kAuto && mode != kKeep;
  const Result<std::optional<planner::Plan>> plan = read_plan(options.plan_file);
  problems.add(plan.status());
  if (plan.ok() && plan->has_value()) {
    follow_plan(words, **plan, options, problems);
  } else {
    choose_type(words, weights, options);
  }
  options.run.dtype = options.model.dtype;
  if (options.config.context == 0) return;
  const planner::TransformerConfig& config = options.config;
  if (!words.gives_seq) {
    options.model.seq = std::min(planner::kDefaultSeq, config.context);
  }
  problems.add(choose_lr(weights, record, options));
}

Problems check_weights(const TrainOptions& options) {
  const Weights weights = weights_of(options.checkpoints);
  Problems problems;
  if (!weights.from_init || !check_init_folder(weights.folder).ok()) return problems;
  if (!options.model_refused && options.config.context > 0) {
    problems.add(check_same_model(weights.folder, options.config));
  }
  const auto folder = checkpoints::open_stored_folder(weights.folder);
  problems.add(folder.ok() ? checkpoints::check_has_model(*folder) : folder.status());
  return problems;
}

}  // namespace elixir
