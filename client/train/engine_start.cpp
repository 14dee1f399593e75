// How an engine begins and ends: plan, memory, session, views, hooks.

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <exception>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/inherited.h"
#include "base/log.h"
#include "base/processors.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "client/exchange/collective_exchange.h"
#include "client/exchange/host_exchange.h"
#include "client/plan/host_memory_check.h"
#include "client/ranks/read_launch_environment.h"
#include "client/regions/region_plan.h"
#include "client/tensors/activation_host.h"
#include "client/tensors/interception.h"
#include "client/tensors/replace_data.h"
#include "client/tensors/scalar_type.h"
#include "client/train/engine.h"
#include "client/train/weights.h"
#include "planner/choice_names.h"
#include "planner/simulate/step_model.h"
#include "shm/shape.h"

namespace elixir {
namespace {

constexpr uint64_t kModelStateBytes = 16;  // a parameter: ZeRO (arXiv 1910.02054), section 3.1

// What the starter says is the same for every optimizer of a process: the second one, a GAN's or a
// critic's, is a job of its own. Every rank must build them in the same order.
LaunchEnvironment environment_of(const Options& options) {
  if (options.environment) return *options.environment;
  LaunchEnvironment environment = value_or_throw(read_launch_environment());
  static std::atomic<uint32_t> built{0};
  const uint32_t number = ++built;
  if (number > 1 && environment.starter != "alone") environment.job += fmt::format("#{}", number);
  return environment;
}

// Before anything is opened: the program is not Elixir's.
ModelParts checked_parts(const ModelTensors& model, const Options& options) {
  open_standard_descriptors();
  refuse_shared_memory(model);
  return parts_of(model, options);
}

std::vector<ModuleParameter> grouped_parameters(const ModelTensors& kept,
                                                const std::vector<ParamGroup>& groups,
                                                const Options& options) {
  const ValuesFrom values = options.load_from.empty() ? ValuesFrom::kModule : ValuesFrom::kFolder;
  std::vector<ModuleParameter> parameters = trainable_parameters(kept, values);
  assign_groups(parameters, groups);
  const std::vector<ModuleParameter> frozen = frozen_parameters(kept, values);
  parameters.insert(parameters.end(), frozen.begin(), frozen.end());
  if (options.plan) order_by(parameters, *options.plan);
  return parameters;
}

std::vector<optim::AdamOptions> by_group(const optim::AdamOptions& own,
                                         const std::vector<ParamGroup>& groups) {
  std::vector<optim::AdamOptions> all = {own};
  for (const ParamGroup& group : groups) all.push_back(changed(own, group));
  return all;
}

// Where neither a plan nor an option says how much activations take in host memory: at most this
// part of what is free, shared by the node's ranks.
constexpr uint64_t kActivationShare = 2;

// All ranks of a node wait for rank 0, so that it may have the processors to itself.
uint32_t load_threads(const Options& options) {
  return options.load_threads > 0 ? options.load_threads : parallel_threads();
}

HostDeviceOptions host_options(const Options& options) {
  return {options.device_memory_bytes, options.link, options.operator_us};
}

// `device`: that is used in the place of options.device.
RunPlan plan_of(const std::vector<ModuleParameter>& parameters, const Options& options,
                const LaunchEnvironment& environment, const std::optional<PlacedDevice>& device) {
  const bool at_once = device ? device->device->copies_at_once()
                              : copies_at_once(parse_device(options.device), host_options(options));
  RunPlan plan = value_or_throw(make_run_plan(sizes_of(parameters), options, environment, at_once));
  throw_if_error(check_host_memory(plan, environment.local_rank, environment.local_world_size));
  return plan;
}

void log_plan(const PlanSummary& plan, uint64_t host_bytes, uint32_t ranks, uint64_t page_bytes) {
  log_info("plan",
           "parameters={} chunks={} gpu_chunks={} swing_chunks={} frozen_chunks={} chunk_numel={} "
           "waste={:.1f}% rcache_blocks={} long_blocks={} long_numel={} update={} spare_slots={} "
           "device=\"{}\" device_memory=\"{}\" host_memory=\"{}\" ranks={} exchange={} "
           "page_bytes={} attach_s={:.2f} load_s={:.2f} pageable_bytes={}",
           plan.parameters_numel, plan.n_chunks, plan.n_gpu_chunks, plan.n_swing_chunks,
           plan.n_frozen_chunks, plan.chunk_numel, plan.waste_ratio * 100, plan.rcache_blocks,
           plan.long_blocks, plan.long_numel, name_in(kUpdateModeNames, plan.update),
           plan.spare_slots, plan.device, format_bytes(plan.device_bytes), format_bytes(host_bytes),
           ranks, shm::exchange_name(plan.exchange), page_bytes, plan.attach_seconds,
           plan.load_seconds, plan.pageable_bytes);
}

}  // namespace

Engine::Engine(const ModelTensors& model, const optim::AdamOptions& hyperparameters,
               const std::vector<ParamGroup>& groups, const Options& options,
               std::optional<PlacedDevice> device)
    : Engine(checked_parts(model, options), hyperparameters, groups, options, std::move(device)) {}

Engine::Engine(const ModelParts& model, const optim::AdamOptions& hyperparameters,
               const std::vector<ParamGroup>& groups, const Options& options,
               std::optional<PlacedDevice> device)
    : environment_(environment_of(options)),
      dtype_(scalar_type(options.dtype)),
      parameters_(grouped_parameters(model.kept, groups, options)),
      run_plan_(plan_of(parameters_, options, environment_, device)),
      keeps_gradients_(options.keep_gradients),
      runs_(run_plan_.run_lengths()),
      binding_(std::make_shared<ChunkBinding>()),
      placed_device_(device ? std::move(*device)
                            : make_device(parse_device(options.device), environment_.local_rank,
                                          host_options(options))),
      device_(placed_device_.device.get()),
      losses_(*device_),
      inputs_(*device_),
      control_(by_group(hyperparameters, groups), options, run_plan_.update,
               environment_.world_size),
      trace_(options.trace.empty()
                 ? nullptr
                 : std::make_unique<StepTrace>(options.trace, environment_.rank, *device_)),
      meter_(*device_, trace_.get()) {
  if (options.plan) summary_.predicted_step_s = options.plan->predicted.step_s;
  if (options.plan) stats_.kept_bytes = options.plan->kept_bytes;
  set_region_plan(run_plan_.regions);
  counters_at_step_.recomputed_regions = regions_run_again();
  keep_interception();
  const c10::InferenceMode training(false);  // views made in it could not be trained
  const std::optional<StoredRun> stored = stored_run(model, options);  // what does not fit, first
  const int64_t start_ns = monotonic_ns();
  attach(options);
  summary_.attach_seconds = seconds_since(start_ns);
  if (options.plan && environment_.local_rank == 0) {
    rates_keeper_.emplace(*options.plan, environment_.local_world_size, session_->elixird_pid());
  }
  allocate_blocks();
  take_activations();
  const int64_t load_start_ns = monotonic_ns();
  const bool lacks_values = stored && stored->plan.left_out > 0;
  if (!stored || lacks_values) {
    load_weights(*exchange_, run_plan_, parameters_, environment_.rank == 0, load_threads(options));
  }
  if (stored) {
    load_run(*stored, lacks_values ? CollectiveKind::kLoadFolder : CollectiveKind::kLoad,
             load_threads(options));
    loaded_ = stored->report;
  }
  summary_.load_seconds = seconds_since(load_start_ns);
  // A module that lacks device memory for them is left as it was.
  std::vector<MovedTensor> rest =
      values_of_the_rest(model, parameters_, {dtype_, options.buffer_dtype},
                         stored ? read_rest(*stored) : std::map<std::string, at::Tensor>());
  for (const MovedTensor& item : rest) {
    rest_.push_back({item.name, item.tensor, item.tensor.scalar_type()});
  }
  share_the_rest(*exchange_, run_plan_, rest);
  if (options.broadcast_buffers && environment_.world_size > 1) {
    shared_buffers_ = model.kept.buffers;
  }
  move_to(torch_device(*device_), rest);
  make_views();
  hook_gradients();
  // Nothing throws from here on: a storage must not be left at memory that is gone.
  forget_gathered();
  binding_->begin(this);
  summarise();
  if (!options.log_plan || environment_.local_rank != 0) return;
  log_plan(summary_, host_states_bytes(run_plan_, environment_.local_world_size),
           environment_.world_size, session_->page_bytes());
}

Engine::~Engine() {
  binding_->end();  // operators and backward passes of other threads
  if (activation_store_ != nullptr) {
    activation_store_->close();
  }
  taken_->clear();
  for (const auto& storage : storages_) {
    if (storage) storage->place(nullptr);
  }
  try {
    const bool wanted = std::uncaught_exceptions() == 0 && !session_->interrupted();
    if (wanted && control_.step() > 0) synchronize();
  } catch (const std::exception& failure) {
    // A lost elixird or rank was told, or will be by what comes next.
    log_warn("last_step", "text=\"{}\"", failure.what());
  }
  end_saves();
}

// For what checkpointed regions send from now on.
void Engine::take_activations() {
  if (!run_plan_.regions.sends_any()) return set_activation_host(nullptr);
  const uint64_t room_bytes = memory_room().available_bytes;
  const uint64_t limit_bytes = run_plan_.activation_bytes.value_or(room_bytes / kActivationShare /
                                                                   environment_.local_world_size);
  activation_store_ = std::make_shared<ActivationStore>(*device_, limit_bytes);
  set_activation_host(activation_store_);
}

void Engine::allocate_blocks() {
  RCache::LongBlocks long_blocks{.n_blocks = run_plan_.long_blocks};
  if (long_blocks.n_blocks > 0) {
    for (const uint32_t run : runs_) long_blocks.is_long.push_back(run > 1 ? 1 : 0);
  }
  rcache_ = std::make_unique<RCache>(run_plan_.shape.total_chunks(), run_plan_.rcache_blocks,
                                     run_plan_.shape.all_chunks(), std::move(long_blocks));
  const auto add = [this](uint64_t bytes, const char* what, const char* remedy) {
    std::byte* const memory = device_->allocate(bytes, what, remedy);
    blocks_.push_back({memory, device_->create_event(), device_->create_event()});
  };
  for (uint32_t i = 0; i < run_plan_.rcache_blocks; ++i) {
    add(exchange_->block_bytes(), "an rCache block",
        "use fewer blocks (--rcache-blocks) or shorter chunks (--chunk-numel)");
  }
  for (uint32_t i = 0; i < run_plan_.long_blocks; ++i) {
    add(run_plan_.long_block_bytes(), "a block for parameters longer than a chunk",
        "use fewer of them (--long-blocks), or fewer blocks (--rcache-blocks)");
  }
}

void Engine::attach(const Options& options) {
  if (run_plan_.shape.exchange == shm::Exchange::kCollective) {
    ranks_ = connect_ranks(environment_, placed_device_);
  }
  SessionOptions session;
  session.runtime_dir = options.runtime_dir;
  session.launch = environment_.launch.empty() ? environment_.job : environment_.launch;
  session.job = environment_.job;
  session.ranks_said = environment_.ranks_said;
  session.rank = environment_.rank;
  session.local_rank = environment_.local_rank;
  session.local_ranks = environment_.local_world_size;
  session.workers = options.workers;
  session.ranks_timeout_s = options.ranks_timeout_s;
  session.numa_node = placed_device_.numa_node;
  session.rules = control_.rules();
  session.pins_params = device_->pins_host_memory() ? 1 : 0;
  if (ranks_.rendezvous) {
    session.liveness = [&watch = ranks_.rendezvous->watch()] { return watch.status(); };
  }
  const shm::Shape& shape = run_plan_.shape;
  const std::vector<shm::ParameterPlace>& places = run_plan_.chunks.places;
  const shm::StepRules& rules = session.rules;
  session_ = value_or_throw(Session::attach(shape, places, session));
  if (ranks_.rendezvous) {
    says_collectives_.emplace(ranks_.rendezvous->watch(), session_->said_wait());
  }
  pinned_ = std::make_unique<PinnedRanges>(*device_, session_->device_ranges());
  throw_if_error(session_->protect_params());
  if (ranks_.group == nullptr) {
    exchange_ =
        std::make_unique<HostExchange>(*session_, *device_, rules, places, run_plan_.grad_blocks);
  } else {
    exchange_ =
        std::make_unique<CollectiveExchange>(*session_, *device_, *ranks_.group, rules, places,
                                             run_plan_.chunks.order(), run_plan_.grad_blocks);
  }
  static_assert(planner::kSwingLanes <= kSwingStreams, "a lane has a stream of its own");
  if (shape.n_swing_chunks > 0) {
    swing_runner_ = std::make_unique<SwingRunner>(*session_, *device_, trained_places());
  }
  grad_offload_ = std::make_unique<GradOffload>(*device_, *exchange_, shape, trained_places(),
                                                rules.immediate != 0 ? rules.accumulate : 0);
}

std::vector<shm::ParameterPlace> Engine::trained_places() const {
  std::vector<shm::ParameterPlace> trained;
  for (const shm::ParameterPlace& place : run_plan_.chunks.places) {
    if (!run_plan_.shape.frozen(place.chunk)) trained.push_back(place);
  }
  return trained;
}

void Engine::make_views() {
  const at::NoGradGuard no_grad;
  for (uint32_t chunk = 0; chunk < run_plan_.shape.total_chunks(); ++chunk) {
    storages_.emplace_back();
    own_blocks_.push_back(exchange_->own_block(chunk));
    if (runs_[chunk] == 0) continue;
    storages_.back() = c10::make_intrusive<ChunkStorage>(
        binding_, chunk, runs_[chunk] * run_plan_.shape.chunk_bytes(), torch_device(*device_));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const shm::ParameterPlace& place = run_plan_.chunks.places[i];
    at::Tensor& tensor = parameters_[i].tensor;
    sizes_.push_back(tensor.sizes().vec());
    replace_data(tensor, chunk_view(storages_[place.chunk], dtype_,
                                    static_cast<int64_t>(place.offset), tensor.sizes()));
  }
}

// Chunks in blocks are stale; those that lie on the device all the time stay where they are.
void Engine::forget_gathered() {
  for (uint32_t chunk = 0; chunk < storages_.size(); ++chunk) {
    if (!storages_[chunk]) continue;
    const uint32_t block = rcache_->block_of(chunk);
    if (block != RCache::kNone) {  // of a frozen chunk that stays
      storages_[chunk]->close();
    } else {
      storages_[chunk]->place(own_blocks_[chunk]);
    }
  }
}

void Engine::summarise() {
  const ChunkPlan& chunks = run_plan_.chunks;
  summary_.parameters_numel = shm::total_numel(chunks.places);
  summary_.frozen_numel = summary_.parameters_numel - shm::total_numel(trained_places());
  summary_.chunk_numel = chunks.chunk_numel;
  summary_.n_chunks = chunks.n_chunks;
  summary_.n_gpu_chunks = chunks.n_gpu_chunks;
  summary_.n_swing_chunks = chunks.n_swing_chunks;
  summary_.n_frozen_chunks = chunks.n_frozen_chunks;
  summary_.rcache_blocks = run_plan_.rcache_blocks;
  summary_.long_blocks = run_plan_.long_blocks;
  summary_.long_numel = run_plan_.long_numel;
  summary_.update = run_plan_.update;
  summary_.spare_slots = run_plan_.shape.n_spare_slots;
  summary_.exchange = run_plan_.shape.exchange;
  summary_.device = placed_device_.name;
  summary_.pinned_bytes = pinned_->pinned_bytes();
  summary_.pageable_bytes = pinned_->refused_bytes();
  summary_.waste_ratio = chunks.waste_ratio();
  summary_.device_bytes = device_->allocated_bytes();
  summary_.model_state_bytes =
      kModelStateBytes * (summary_.parameters_numel - summary_.frozen_numel) +
      element_bytes(run_plan_.shape.type) * summary_.frozen_numel;
  if (environment_.local_rank != 0) return;
  if (!parameters_.empty() && parameters_[0].built_as == at::kDouble) {
    log_warn("parameter_type",
             "why=\"the module is built in FP64\" effect=\"it computes in {}, over FP32 masters\"",
             c10::toString(dtype_));
  }
  say_other_frozen_types(parameters_, dtype_);
  for (const ModuleParameter& parameter : parameters_) {
    if (parameter.built_contiguous) continue;
    log_warn("parameter_layout",
             "parameter=\"{}\" why=\"it is not contiguous, or others are not\" effect=\"it is from "
             "now on, so that contiguous() and reshape() give its memory and not a copy\"",
             parameter.name);
    break;
  }
}

}  // namespace elixir
