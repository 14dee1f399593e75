#include "client/train/engine.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "base/log.h"
#include "base/units.h"
#include "client/chunk/interception.h"
#include "client/exchange/collective_exchange.h"
#include "client/exchange/host_exchange.h"
#include "client/train/weights.h"

namespace elixir {
namespace {

constexpr uint64_t kModelStateBytes = 16;  // a parameter: ZeRO (arXiv 1910.02054), section 3.1

LaunchEnvironment environment_of(const RuntimeOptions& runtime) {
  if (!std::isfinite(runtime.loss_scale) || runtime.loss_scale <= 0) {
    throw Error(error(Code::kInvalidArgument, "loss_scale = {}: it must be greater than 0",
                      runtime.loss_scale));
  }
  return runtime.environment ? *runtime.environment : value_or_throw(read_launch_environment());
}

RunPlan plan_of(const std::vector<ModuleParameter>& parameters, const RuntimeOptions& runtime,
                const LaunchEnvironment& environment) {
  PlanOptions options;
  options.type = compute_type_of(runtime.dtype);
  options.chunk_numel = runtime.chunk_numel;
  options.rcache_blocks = runtime.rcache_blocks;
  options.gpu_home_share = runtime.gpu_home_share;
  options.exchange = runtime.exchange;
  options.device_memory_bytes = runtime.device_memory_bytes;
  return value_or_throw(make_run_plan(sizes_of(parameters), options, environment));
}

// Throws when two threads gather at the same moment: chunks belong to one thread at a time. Catches
// the misuse sooner or later, not each time.
class OneThread {
 public:
  explicit OneThread(std::atomic<bool>& busy) : busy_(busy) {
    // Acquire and release order nothing but this flag's own holder; contention is a misuse.
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw Error(error(Code::kInvalidArgument,
                        "two threads run operators on one model's parameters at the same time: run "
                        "the model from one thread"));
    }
  }
  ~OneThread() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

// Runs when autograd has summed up a parameter's gradient.
struct Engine::GradHook final : torch::autograd::PostAccumulateGradHook {
  GradHook(std::shared_ptr<ChunkBinding> owner, uint32_t parameter)
      : binding(std::move(owner)), index(parameter) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    auto* engine = static_cast<Engine*>(binding->source);
    if (engine == nullptr) return;  // the optimizer is gone: the gradient stays torch's
    engine->grad_offload_->take(index, tensor.grad(), engine->step_ + 1);
    tensor.mutable_grad().reset();
  }

  std::shared_ptr<ChunkBinding> binding;
  uint32_t index;
};

Engine::Engine(torch::nn::Module& model, const optim::AdamOptions& hyperparameters,
               const RuntimeOptions& runtime, std::optional<PlacedDevice> device)
    : environment_(environment_of(runtime)),
      loss_scale_(runtime.loss_scale),
      dtype_(runtime.dtype),
      parameters_(trainable_parameters(model)),
      run_plan_(plan_of(parameters_, runtime, environment_)),
      binding_(std::make_shared<ChunkBinding>()),
      placed_device_(device ? std::move(*device)
                            : make_device(runtime.device, environment_.local_rank,
                                          runtime.device_memory_bytes)),
      device_(placed_device_.device.get()),
      hyperparameters_(hyperparameters) {
  keep_interception();
  attach(runtime);
  rcache_ = std::make_unique<RCache>(run_plan_.shape.all_chunks(), run_plan_.rcache_blocks);
  for (uint32_t i = 0; i < run_plan_.rcache_blocks; ++i) {
    blocks_.push_back(device_->allocate(exchange_->block_bytes(), "an rCache block",
                                        "use fewer blocks (--rcache-blocks) or shorter chunks "
                                        "(--chunk-numel)"));
  }
  load_weights(*exchange_, run_plan_, parameters_);
  make_views();
  move_the_rest(model, device_->torch_device(), dtype_);
  hook_gradients();
  // Nothing throws from here on: a storage must not be left at memory that is gone.
  forget_gathered();
  binding_->source = this;
  summarise();
}

Engine::~Engine() {
  binding_->source = nullptr;
  for (const auto& storage : storages_) storage->place(nullptr);
  if (std::uncaught_exceptions() > 0 || step_ == 0) return;
  try {
    exchange_->synchronize(step_);
  } catch (const std::exception& failure) {
    // A lost elixird or rank was told, or will be by what comes next.
    log_warn("last_step", "text=\"{}\"", failure.what());
  }
}

void Engine::attach(const RuntimeOptions& runtime) {
  if (run_plan_.shape.exchange == shm::ExchangeKind::kCollective) {
    ranks_ = connect_ranks(environment_, placed_device_);
  }
  SessionOptions options;
  options.runtime_dir = runtime.runtime_dir;
  options.job = environment_.job;
  options.rank = environment_.rank;
  options.local_rank = environment_.local_rank;
  options.local_ranks = environment_.local_world_size;
  options.workers = runtime.workers;
  options.numa_node = placed_device_.numa_node;
  if (ranks_.rendezvous) {
    options.news = [&watch = ranks_.rendezvous->watch()] { return watch.status(); };
  }
  const shm::Shape& shape = run_plan_.shape;
  const std::vector<shm::ParameterPlace>& places = run_plan_.chunks.places;
  session_ = value_or_throw(Session::attach(shape, places, options));
  pinned_ = std::make_unique<PinnedRanges>(*device_, session_->device_ranges());
  if (ranks_.group == nullptr) {
    exchange_ = std::make_unique<HostExchange>(*session_, *device_);
  } else {
    exchange_ =
        std::make_unique<CollectiveExchange>(*session_, *device_, *ranks_.rendezvous, *ranks_.group,
                                             run_plan_.chunks.order(), run_plan_.grad_blocks());
  }
  param_upload_ = std::make_unique<ParamUpload>(*device_, *exchange_);
  grad_offload_ = std::make_unique<GradOffload>(*device_, *exchange_, shape, places);
}

void Engine::make_views() {
  const at::NoGradGuard no_grad;
  for (uint32_t chunk = 0; chunk < run_plan_.shape.all_chunks(); ++chunk) {
    storages_.push_back(c10::make_intrusive<ChunkStorage>(
        binding_, chunk, run_plan_.shape.chunk_bytes(), device_->torch_device()));
    resident_blocks_.push_back(exchange_->resident_block(chunk));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const shm::ParameterPlace& place = run_plan_.chunks.places[i];
    at::Tensor& tensor = parameters_[i].tensor;
    tensor.set_data(chunk_view(storages_[place.chunk], dtype_, static_cast<int64_t>(place.offset),
                               tensor.sizes()));
  }
}

// Chunks in blocks are stale; those that lie on the device all the time stay where they are.
void Engine::forget_gathered() {
  for (uint32_t chunk = 0; chunk < storages_.size(); ++chunk) {
    storages_[chunk]->place(resident_blocks_[chunk]);
  }
}

void Engine::hook_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.mutable_grad().reset();
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters_[i].tensor, std::make_unique<GradHook>(binding_, static_cast<uint32_t>(i)));
  }
}

void Engine::summarise() {
  const ChunkPlan& chunks = run_plan_.chunks;
  summary_.parameters_numel = shm::total_numel(chunks.places);
  summary_.chunk_numel = chunks.chunk_numel;
  summary_.n_chunks = chunks.n_chunks;
  summary_.n_gpu_chunks = chunks.n_gpu_chunks;
  summary_.rcache_blocks = rcache_->n_blocks();
  summary_.exchange = run_plan_.shape.exchange;
  summary_.device = placed_device_.name;
  summary_.pinned_bytes = pinned_->pinned_bytes();
  summary_.waste_ratio = chunks.waste_ratio();
  summary_.device_bytes = device_->allocated_bytes();
  summary_.model_state_bytes = kModelStateBytes * summary_.parameters_numel;
  if (environment_.local_rank != 0) return;
  log_info("plan",
           "parameters={} chunks={} gpu_chunks={} chunk_numel={} waste={:.1f}% rcache_blocks={} "
           "device=\"{}\" device_memory=\"{}\" host_memory=\"{}\" ranks={} exchange={} "
           "page_bytes={}",
           summary_.parameters_numel, summary_.n_chunks, summary_.n_gpu_chunks,
           summary_.chunk_numel, summary_.waste_ratio * 100, summary_.rcache_blocks,
           summary_.device, format_bytes(summary_.device_bytes),
           format_bytes(run_plan_.shape.session_bytes() * environment_.local_world_size),
           environment_.world_size, shm::exchange_name(summary_.exchange), session_->page_bytes());
}

bool Engine::acquire_one(uint32_t chunk) {
  if (resident(chunk)) return true;
  const std::optional<RCache::Placement> placement = rcache_->pin(chunk);
  if (!placement) return false;
  if (placement->hit) return true;
  if (placement->evicted != RCache::kNone) storages_[placement->evicted]->place(nullptr);
  std::byte* block = blocks_[placement->block];
  try {
    param_upload_->fill(chunk, step_, block);
  } catch (...) {
    rcache_->abandon(chunk);
    throw;
  }
  storages_[chunk]->place(block);
  return true;
}

void Engine::release_one(uint32_t chunk) noexcept {
  if (!resident(chunk)) rcache_->unpin(chunk);
}

void Engine::acquire(std::span<const uint32_t> chunks, const char* operator_name) {
  const OneThread one_thread(busy_);
  size_t done = 0;
  try {
    for (; done < chunks.size(); ++done) {
      if (acquire_one(chunks[done])) continue;
      throw Error(
          error(Code::kResourceExhausted,
                "{} reads parameters of {} chunks at once and the rCache has {} blocks, {} of "
                "them in use: give it at least {} (--rcache-blocks)",
                operator_name, chunks.size(), rcache_->n_blocks(), rcache_->n_pinned(),
                rcache_->n_pinned() - done + chunks.size()));
    }
  } catch (...) {
    for (size_t i = 0; i < done; ++i) release_one(chunks[i]);
    throw;
  }
}

void Engine::release(std::span<const uint32_t> chunks) noexcept {
  for (uint32_t chunk : chunks) release_one(chunk);
}

void Engine::check_views() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (chunk_storage_of(parameters_[i].tensor) ==
        storages_[run_plan_.chunks.places[i].chunk].get()) {
      continue;
    }
    throw Error(
        error(Code::kInvalidArgument,
              "parameter '{}' was given other data after the optimizer was built (module.to() "
              "or set_data does that): move or cast the module before",
              parameters_[i].name));
  }
}

shm::StepRecord Engine::verdict() const {
  const optim::AdamOptions& h = hyperparameters_;
  shm::StepRecord verdict{};
  verdict.step = step_;
  verdict.decoupled = h.decoupled ? 1 : 0;
  verdict.lr = h.lr;
  verdict.beta1 = h.beta1;
  verdict.beta2 = h.beta2;
  verdict.eps = h.eps;
  verdict.weight_decay = h.weight_decay;
  verdict.grad_scale = 1.0 / (environment_.world_size * loss_scale_);
  verdict.metric = loss_;
  verdict.gathers = stats_.gathers;
  verdict.evictions = stats_.evictions;
  verdict.h2d_bytes = stats_.h2d_bytes;
  verdict.d2h_bytes = stats_.d2h_bytes;
  verdict.device_bytes = device_->allocated_bytes();
  return verdict;
}

void Engine::take_stats() {
  const StepStats now{step_,
                      rcache_->gathers(),
                      rcache_->hits(),
                      rcache_->evictions(),
                      device_->h2d_bytes(),
                      device_->d2h_bytes(),
                      session_->update_numel_per_s()};
  stats_ = {now.step,
            now.gathers - counters_at_step_.gathers,
            now.hits - counters_at_step_.hits,
            now.evictions - counters_at_step_.evictions,
            now.h2d_bytes - counters_at_step_.h2d_bytes,
            now.d2h_bytes - counters_at_step_.d2h_bytes,
            now.update_numel_per_s};
  counters_at_step_ = now;
}

void Engine::step(std::optional<double> loss) {
  if (rcache_->n_pinned() != 0) {
    throw Error(error(Code::kInvalidArgument,
                      "step() while elixir::gathered() holds parameters: end its scope first"));
  }
  check_views();
  const uint32_t step = step_ + 1;
  grad_offload_->complete(step);
  step_ = step;
  take_stats();
  loss_ = loss.value_or(std::numeric_limits<double>::quiet_NaN());
  const shm::StepRecord record = verdict();
  throw_if_error(session_->post_step(record));
  exchange_->update_resident(step,
                             optim::make_adam_step(hyperparameters_, step, record.grad_scale));
  forget_gathered();
  const bool departed = rcache_->end_step();
  if (departed && !said_departed_) {
    log_info("order_of_use_changed",
             "step={} effect=\"gathers by least recent use in such a step, then re-recorded\"",
             step);
    said_departed_ = true;
  }
  // As an optimizer's in-place update does: a graph from before the step cannot be run backward.
  for (const ModuleParameter& parameter : parameters_) {
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void Engine::zero_grad() { grad_offload_->discard(); }

double Engine::mean_loss() { return exchange_->mean_metric(step_, loss_); }

void Engine::synchronize() { exchange_->synchronize(step_); }

uint64_t Engine::weights_xxh64() {
  synchronize();
  return masters_xxh64(*exchange_, run_plan_);
}

}  // namespace elixir
