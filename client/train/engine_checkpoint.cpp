// Saving a run into a folder and loading it from one; elixird writes and reads what it keeps.

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/compute_type_names.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "checkpoint/details.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/left_out.h"
#include "checkpoint/save_place.h"
#include "client/tensors/resolved.h"
#include "client/tensors/stored_type.h"
#include "client/train/engine.h"

namespace elixir {
namespace {

constexpr double kProgressSeconds = 2;
// The last save of a job that was killed may still be under way in elixird.
constexpr double kLockSeconds = 30;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string rank_file(uint32_t rank) { return fmt::format("user/rank-{}.bin", rank); }

// Rank 0's, and this rank's own.
std::vector<checkpoints::UserFile> files_of(const SaveOptions& options, uint32_t rank) {
  std::vector<checkpoints::UserFile> files;
  std::set<std::string> names;
  if (rank == 0) {
    for (const auto& [name, bytes] : options.files) {
      if (!names.insert(name).second || name.starts_with("user/rank-")) {
        throw Error(error(Code::kInvalidArgument,
                          "save() with a file '{}', {}: choose another name", name,
                          name.starts_with("user/rank-") ? "which is a rank's own" : "twice"));
      }
      files.push_back({name, bytes_of(bytes)});
    }
  }
  if (!options.rank_state.empty()) files.push_back({rank_file(rank), bytes_of(options.rank_state)});
  return files;
}

checkpoints::ManifestGroup group_of(const optim::AdamOptions& h) {
  return {h.lr, h.weight_decay, {h.beta1, h.beta2, h.eps}};
}

std::string text_of(const checkpoints::ManifestGroup& group) {
  return fmt::format("lr={} weight_decay={} hyper={}", group.lr, group.weight_decay,
                     fmt::join(group.hyper, ","));
}

}  // namespace

// ---- saving ----

checkpoints::Manifest Engine::manifest_of(const SaveOptions& options) {
  if (options.program.size() > checkpoints::kMaxProgramBytes) {
    throw Error(error(Code::kInvalidArgument,
                      "save() with {} bytes of the program's text; {} are possible: give more as a "
                      "file",
                      options.program.size(), checkpoints::kMaxProgramBytes));
  }
  checkpoints::Manifest manifest;
  manifest.step = steps();
  manifest.type = run_plan_.shape.type;
  manifest.rule = control_.group(0).rule;
  manifest.optimizer_states = options.optimizer_states;
  manifest.states_alone = !options.model;
  const bool lacks = !options.frozen && run_plan_.shape.n_frozen_chunks > 0;
  if (lacks || !options.model) manifest.left_out.emplace();  // elixird fills it in
  manifest.ranks = environment_.world_size;
  for (uint32_t i = 0; i < control_.n_groups(); ++i) {
    manifest.groups.push_back(group_of(control_.group(i)));
  }
  const StepControl::ScaleState scale = control_.scale_state(*session_);
  manifest.loss_scale = {scale.value, scale.good_steps};
  for (const ModuleParameter& parameter : parameters_) {
    if (parameter.group != 0) manifest.group_of[parameter.name] = parameter.group;
  }
  manifest.health = checkpoints::Health{.finite_step = options.finite_step};
  manifest.program = options.program;
  return manifest;
}

// Buffers, and what is left out, in their own types.
std::vector<checkpoints::ExtraValues> Engine::extras() const {
  std::vector<checkpoints::ExtraValues> all;
  for (const Rest& item : rest_) {
    const std::optional<std::string_view> type = stored_name_of(item.tensor.scalar_type());
    const char* const kind = special_kind(item.tensor);
    if (!type || kind != nullptr) {
      log_warn("not_saved",
               "tensor=\"{}\" why=\"safetensors files have dense tensors of their "
               "own types: this one is {} and {}\"",
               item.name, c10::toString(item.tensor.scalar_type()),
               kind != nullptr ? kind : "dense");
      continue;
    }
    const at::Tensor here = resolved(item.tensor.detach()).to(at::kCPU).contiguous();
    checkpoints::ExtraValues extra;
    extra.name = item.name;
    extra.dtype = checkpoints::find_dtype(*type);
    extra.shape = here.sizes().vec();
    const auto* const bytes = static_cast<const std::byte*>(here.const_data_ptr());
    if (here.nbytes() > 0) extra.bytes.assign(bytes, bytes + here.nbytes());
    all.push_back(std::move(extra));
  }
  return all;
}

checkpoints::Details Engine::save_details(const SaveOptions& options) {
  checkpoints::Details details;
  details.files = files_of(options, environment_.rank);
  const shm::Shape& shape = run_plan_.shape;
  if (shape.n_gpu_chunks > 0) {
    const std::vector<uint64_t> updates = control_.updates(*session_);
    for (uint32_t i = 0; i < updates.size(); ++i) {
      if (shape.on_gpu(run_plan_.chunks.places[i].chunk)) details.updates[i] = updates[i];
    }
  }
  if (environment_.rank != 0) return details;
  details.shapes = sizes_;
  details.manifest = manifest_of(options);
  details.keep = {options.keep, options.keep_every};
  details.shadow_bytes = options.shadow_bytes;
  return details;
}

std::shared_ptr<SaveRequest> Engine::save(const std::string& folder, const SaveOptions& options) {
  throw_in_child("save()");
  const at::NoGradGuard no_grad;
  if (!environment_.one_node()) {
    throw Error(error(Code::kInvalidArgument,
                      "save() of a job of several nodes, of which each has a part: that is not "
                      "possible yet; release() brings the whole model to one process"));
  }
  if (!options.model && !options.optimizer_states) {
    throw Error(error(Code::kInvalidArgument,
                      "save() without the model and without the optimizer's states: nothing would "
                      "be left; set SaveOptions::model or SaveOptions::optimizer_states"));
  }
  const checkpoints::SavePlace place = value_or_throw(checkpoints::save_place(folder));
  std::shared_ptr<const UniqueFd> lock_file;
  std::vector<checkpoints::ExtraValues> rest;
  if (environment_.rank == 0) {
    lock_file = value_or_throw(checkpoints::hold_folder(place.parent.get(), kLockSeconds));
    if (options.model) rest = extras();
  }
  MutexLock lock(mutex_);
  await_operators("save()", lock);
  require_between_steps("save()");
  if (lock_file && std::find(locks_.begin(), locks_.end(), lock_file) == locks_.end()) {
    locks_.push_back(lock_file);
  }
  look_at_saves();
  apply_device_update();
  exchange_->drain();
  checkpoints::Details details = save_details(options);
  details.extras = std::move(rest);
  std::optional<shm::Segment> staging;
  if (run_plan_.shape.n_gpu_chunks > 0) {
    staging.emplace(
        value_or_throw(shm::Segment::create("elixir-staging", run_plan_.shape.staging_bytes())));
  }
  const uint32_t number =
      value_or_throw(session_->save_folder({.parent = place.parent.get(),
                                            .name = place.name,
                                            .after_step = control_.step(),
                                            .details = details,
                                            .staging = staging ? &*staging : nullptr,
                                            .lock = lock_file ? lock_file->get() : -1,
                                            .drop_if_busy = options.drop_if_busy}));
  auto request = std::make_shared<SaveRequest>(*session_, number, folder, steps());
  saves_.push_back(request);
  if (staging) stage_device_chunks(number, *staging);
  return request;
}

void Engine::stage_device_chunks(uint32_t request, shm::Segment& staging) {
  const shm::Shape& shape = run_plan_.shape;
  throw_if_error(session_->await_begun(request));
  for (uint32_t chunk = shape.n_chunks; chunk < shape.all_chunks(); ++chunk) {
    exchange_->read_image(chunk, staging.data());
    throw_if_error(session_->stage_chunk(request, chunk));
  }
}

// Before another request takes the place of an old one's result.
void Engine::look_at_saves() {
  std::erase_if(saves_, [](const auto& save) { return save.expired(); });
  for (const auto& save : saves_) {
    if (const auto request = save.lock()) request->look();
  }
}

void Engine::end_saves() {
  for (const auto& save : saves_) {
    if (const auto request = save.lock()) request->close();
  }
  saves_.clear();
}

// ---- loading ----

RunToLoad Engine::run_to_load(std::vector<NamedTensor> rest, bool states) const {
  RunToLoad of{.parameters = {}, .rest = {}, .states = states, .rank = environment_.rank};
  for (const ModuleParameter& parameter : parameters_) {
    of.parameters.push_back({parameter.name, parameter.tensor.sizes().vec(), !parameter.frozen});
  }
  for (const NamedTensor& item : rest) of.rest[item.name] = item.tensor.sizes().vec();
  return of;
}

std::optional<StoredRun> Engine::stored_run(const ModelParts& model, const Options& options) const {
  if (options.load_from.empty()) return std::nullopt;
  return open_run(options.load_from, run_to_load(rest_of(model, parameters_), options.load_states));
}

// Half of the values may be the folder's already, so that an interrupt ends the job.
bool Engine::folder_ended(uint32_t number) {
  try {
    return value_or_throw(session_->folder_ended_within(number, kProgressSeconds));
  } catch (const Error&) {
    throw;
  } catch (...) {
    session_->break_off("load()");
    throw;
  }
}

// What elixird keeps on this node, and this rank's chunks placed on the GPU. Between two
// await_loaded(), or before the first. A folder that leaves parameters out may be beside others
// than these: then all ranks throw, and nothing is changed.
void Engine::load_run(const StoredRun& run, CollectiveKind call, uint32_t threads) {
  const bool leaves_out = run.plan.left_out > 0, on_device = run_plan_.shape.n_gpu_chunks > 0;
  const bool compares = run.folder.holds_states_alone() && environment_.one_node();
  const checkpoints::LeftOut here =
      compares && on_device ? values_on_device(*exchange_, run_plan_) : checkpoints::LeftOut();
  const std::optional<uint32_t> number = ask_for_load(run, here.hash);
  if (on_device && !leaves_out) load_device_chunks(run, run_plan_, *exchange_, threads);
  Status status = number ? await_load(run, *number) : Status();
  if (leaves_out) {
    // elixird keeps none of them.
    if (!number && compares && environment_.rank == 0) {
      status = checkpoints::check_left_out(run.folder, here);
    }
    status = verdict_of_first(*exchange_, environment_.world_size, std::move(status));
  }
  throw_if_error(status);
  if (on_device && leaves_out) load_device_chunks(run, run_plan_, *exchange_, threads);
  exchange_->await_loaded(call);
  go_on_from(run);
}

// Empty: elixird keeps nothing, or another rank asks.
std::optional<uint32_t> Engine::ask_for_load(const StoredRun& run, uint64_t device_hash) {
  const shm::Shape& shape = run_plan_.shape;
  if (environment_.local_rank != 0 || shape.n_chunks + shape.n_frozen_chunks == 0) return {};
  look_at_saves();
  checkpoints::Details details;
  for (const checkpoints::WantedParameter& wanted : run.of.parameters) {
    details.shapes.push_back(wanted.shape);
  }
  details.ignored = ignored_in(run.of);
  details.device_hash = device_hash;
  return value_or_throw(session_->load_folder({.folder = run.folder.folder.get(),
                                               .path = run.folder.path,
                                               .states = run.of.states,
                                               .details = details}));
}

Status Engine::await_load(const StoredRun& run, uint32_t number) {
  while (!folder_ended(number)) {
    const FolderProgress progress = session_->folder_progress(number);
    log_info("loading", "folder=\"{}\" bytes={} of={}", run.folder.path, progress.done_bytes,
             progress.bytes);
  }
  return session_->folder_result(number).status;
}

// Counts and scale; hyperparameters are this run's.
void Engine::go_on_from(const StoredRun& run) {
  if (!run.of.states) return;
  std::vector<uint64_t> updates = run.plan.updates;
  updates.resize(run_plan_.shape.n_parameters);  // those that are trained come first
  control_.set_updates(std::move(updates));
  const bool goes_on = run.report.has_states;
  steps_before_ = (goes_on ? static_cast<int64_t>(run.report.step) : 0) - control_.step();
  if (!goes_on) return;
  const checkpoints::Manifest& manifest = *run.folder.manifest;
  // That of a type which needs none says nothing to one that does.
  if (manifest.type == run_plan_.shape.type || manifest.loss_scale.value != 1) {
    control_.set_scale_state({manifest.loss_scale.value, manifest.loss_scale.good_steps});
  }
  if (environment_.rank == 0) say_other_hyperparameters(manifest);
}

void Engine::say_other_hyperparameters(const checkpoints::Manifest& manifest) const {
  const UpdateRule rule = control_.group(0).rule;
  if (rule != manifest.rule) {
    log_warn("other_rule", "now={} in_the_folder={} effect=\"the moments are used unchanged\"",
             traits_of(rule).name, traits_of(manifest.rule).name);
  }
  if (run_plan_.shape.type != manifest.type) {
    log_warn("other_type",
             "now={} in_the_folder={} effect=\"what is computed is rounded otherwise\"",
             compute_type_name(run_plan_.shape.type), compute_type_name(manifest.type));
  }
  for (uint32_t i = 0; i < control_.n_groups() || i < manifest.groups.size(); ++i) {
    const bool here = i < control_.n_groups(), there = i < manifest.groups.size();
    const std::string now = here ? text_of(group_of(control_.group(i))) : "none";
    const std::string before = there ? text_of(manifest.groups[i]) : "none";
    if (now == before) continue;
    log_info("other_hyperparameters", "group={} now=\"{}\" in_the_folder=\"{}\"", i, now, before);
  }
}

LoadReport Engine::load(const std::string& folder, bool states) {
  throw_in_child("load()");
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> rest;
  for (const Rest& item : rest_) rest.push_back({item.name, item.tensor});
  const StoredRun run = open_run(folder, run_to_load(rest, states));
  const std::map<std::string, at::Tensor> values = read_rest(run);
  {
    MutexLock lock(mutex_);
    await_operators("load()", lock);
    require_between_steps("load()");
    control_.loss_scale(*session_);  // verdicts on steps of before do not change it afterwards
    control_.updates(*session_);
    finish();
    exchange_->await_loaded(CollectiveKind::kLoadFolder);  // no rank reads the slots any more
    load_run(run, CollectiveKind::kLoadFolder, environment_.local_world_size > 1 ? 1 : 2);
    for (uint32_t chunk = 0; chunk < run_plan_.shape.total_chunks(); ++chunk) forget(chunk);
    for (const ModuleParameter& parameter : parameters_) {
      parameter.tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
  for (const Rest& item : rest_) {
    const auto found = values.find(item.name);
    if (found != values.end()) at::Tensor(item.tensor).copy_(found->second);
  }
  return run.report;
}

// ---- states ----

std::map<std::string, ParameterState> Engine::state_dict() {
  throw_in_child("state_dict()");
  const at::NoGradGuard no_grad;
  MutexLock lock(mutex_);
  await_operators("state_dict()", lock);
  require_between_steps("state_dict()");
  finish();
  const std::vector<uint64_t> updates = control_.updates(*session_);
  std::vector<std::vector<uint32_t>> by_chunk(run_plan_.shape.all_chunks());
  for (uint32_t i = 0; i < updates.size(); ++i) {
    const shm::ChunkRun run = shm::chunks_of(run_plan_.chunks.places[i], run_plan_.shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) by_chunk[chunk].push_back(i);
  }
  std::map<std::string, ParameterState> states;
  std::vector<float> values(run_plan_.shape.gathered_numel());
  const auto cut = [&](uint32_t chunk, at::Tensor ParameterState::*of) {
    for (const uint32_t i : by_chunk[chunk]) {
      const shm::ParameterPlace& place = run_plan_.chunks.places[i];
      const shm::ParameterPart part = shm::part_in(place, run_plan_.shape, chunk);
      at::Tensor& tensor = states[place.name].*of;
      if (part.first == 0) tensor = at::empty(sizes_[i], at::kFloat);
      std::copy_n(values.data() + part.offset, part.numel,
                  tensor.mutable_data_ptr<float>() + part.first);
    }
  };
  for (uint32_t chunk = 0; chunk < by_chunk.size(); ++chunk) {
    exchange_->read_masters(chunk, values.data());
    cut(chunk, &ParameterState::master);
    exchange_->read_moment(chunk, 0, values.data());
    cut(chunk, &ParameterState::exp_avg);
    exchange_->read_moment(chunk, 1, values.data());
    cut(chunk, &ParameterState::exp_avg_sq);
  }
  for (uint32_t i = 0; i < updates.size(); ++i) states[parameters_[i].name].step = updates[i];
  return states;
}

}  // namespace elixir
