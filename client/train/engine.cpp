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

namespace elixir {
namespace {

constexpr uint32_t kFewestDefaultBlocks = 4;
constexpr uint64_t kModelStateBytes = 16;  // a parameter: ZeRO (arXiv 1910.02054), section 3.1

LaunchEnvironment environment_of(const RuntimeOptions& runtime) {
  LaunchEnvironment environment =
      runtime.environment ? *runtime.environment : value_or_throw(read_launch_environment());
  if (!std::isfinite(runtime.loss_scale) || runtime.loss_scale <= 0) {
    throw Error(error(Code::kInvalidArgument, "loss_scale = {}: it must be greater than 0",
                      runtime.loss_scale));
  }
  if (environment.world_size != environment.local_world_size) {
    throw Error(
        error(Code::kInvalidArgument,
              "{} ranks on this node of {} in all: the host exchange serves the ranks of one "
              "node; start all of them here",
              environment.local_world_size, environment.world_size));
  }
  return environment;
}

uint32_t choose_blocks(uint32_t asked, uint32_t n_chunks) {
  const uint32_t wanted = asked != 0 ? asked : std::max(kFewestDefaultBlocks, (n_chunks + 3) / 4);
  return std::min(wanted, n_chunks);
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

Engine::Engine(torch::nn::Module& model, const Hyperparameters& hyperparameters,
               const RuntimeOptions& runtime)
    : environment_(environment_of(runtime)),
      loss_scale_(runtime.loss_scale),
      dtype_(runtime.dtype),
      parameters_(trainable_parameters(model)),
      chunk_plan_(value_or_throw(plan_chunks(sizes_of(parameters_), runtime.chunk_numel))),
      binding_(std::make_shared<ChunkBinding>()),
      hyperparameters_(hyperparameters) {
  keep_interception();
  attach(runtime);
  const uint32_t n_blocks = choose_blocks(runtime.rcache_blocks, chunk_plan_.n_chunks);
  rcache_ = std::make_unique<RCache>(chunk_plan_.n_chunks, n_blocks);
  for (uint32_t i = 0; i < n_blocks; ++i) {
    blocks_.push_back(device_.allocate_block(session_->shape().chunk_bytes()));
  }
  load_weights();
  make_views();
  cast_the_rest(model, dtype_);
  hook_gradients();
  binding_->source = this;
  summarise();
}

Engine::~Engine() {
  binding_->source = nullptr;
  for (const auto& storage : storages_) storage->place(nullptr);
  if (std::uncaught_exceptions() == 0 && step_ > 0) {
    const Status ignored = session_->wait_finished(step_);  // a lost elixird was or will be told
    (void)ignored;
  }
}

void Engine::attach(const RuntimeOptions& runtime) {
  shm::Shape shape;
  shape.type = compute_type_of(dtype_);
  shape.ranks = environment_.local_world_size;
  shape.n_chunks = chunk_plan_.n_chunks;
  shape.chunk_numel = chunk_plan_.chunk_numel;
  SessionOptions options;
  options.runtime_dir = runtime.runtime_dir;
  options.job = environment_.job;
  options.rank = environment_.local_rank;
  options.workers = runtime.workers;
  session_ = value_or_throw(Session::attach(shape, chunk_plan_.places, options));
  exchange_ = std::make_unique<HostExchange>(*session_, device_);
  param_upload_ = std::make_unique<ParamUpload>(*session_, *exchange_);
  grad_offload_ = std::make_unique<GradOffload>(*session_, *exchange_, chunk_plan_.places);
}

// Rank 0's values become everyone's, as DistributedDataParallel broadcasts them.
void Engine::load_weights() {
  if (environment_.local_rank == 0) {
    const at::NoGradGuard no_grad;
    std::vector<float> values(chunk_plan_.chunk_numel);
    size_t next = 0;
    for (uint32_t chunk = 0; chunk < chunk_plan_.n_chunks; ++chunk) {
      std::fill(values.begin(), values.end(), 0.0f);
      for (; next < parameters_.size() && chunk_plan_.places[next].chunk == chunk; ++next) {
        const at::Tensor source = parameters_[next].tensor.to(at::kFloat).contiguous();
        std::copy_n(source.const_data_ptr<float>(), source.numel(),
                    values.begin() + static_cast<ptrdiff_t>(chunk_plan_.places[next].offset));
      }
      const bool last = chunk + 1 == chunk_plan_.n_chunks;
      throw_if_error(session_->load_chunk(chunk, values.data(), last));
    }
  }
  throw_if_error(session_->await_loaded());
}

void Engine::make_views() {
  const at::NoGradGuard no_grad;
  for (uint32_t chunk = 0; chunk < chunk_plan_.n_chunks; ++chunk) {
    storages_.push_back(c10::make_intrusive<ChunkStorage>(
        binding_, chunk, session_->shape().chunk_bytes(), device_.torch_device()));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const shm::ParameterPlace& place = chunk_plan_.places[i];
    at::Tensor& tensor = parameters_[i].tensor;
    tensor.set_data(chunk_view(storages_[place.chunk], dtype_, static_cast<int64_t>(place.offset),
                               tensor.sizes()));
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
  summary_.parameters_numel = shm::total_numel(chunk_plan_.places);
  summary_.chunk_numel = chunk_plan_.chunk_numel;
  summary_.n_chunks = chunk_plan_.n_chunks;
  summary_.rcache_blocks = rcache_->n_blocks();
  summary_.waste_ratio = chunk_plan_.waste_ratio();
  summary_.device_bytes = device_.allocated_bytes();
  summary_.model_state_bytes = kModelStateBytes * summary_.parameters_numel;
  if (environment_.local_rank != 0) return;
  log_info("plan",
           "parameters={} chunks={} chunk_numel={} waste={:.1f}% rcache_blocks={} device=\"{}\" "
           "host=\"{}\" ranks={} page_bytes={}",
           summary_.parameters_numel, summary_.n_chunks, summary_.chunk_numel,
           summary_.waste_ratio * 100, summary_.rcache_blocks, format_bytes(summary_.device_bytes),
           format_bytes(session_->shape().session_bytes() * environment_.local_world_size),
           environment_.local_world_size, session_->page_bytes());
}

bool Engine::acquire_one(uint32_t chunk) {
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
    for (size_t i = 0; i < done; ++i) rcache_->unpin(chunks[i]);
    throw;
  }
}

void Engine::release(std::span<const uint32_t> chunks) noexcept {
  for (uint32_t chunk : chunks) rcache_->unpin(chunk);
}

void Engine::check_views() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (chunk_storage_of(parameters_[i].tensor) == storages_[chunk_plan_.places[i].chunk].get()) {
      continue;
    }
    throw Error(
        error(Code::kInvalidArgument,
              "parameter '{}' was given other data after the optimizer was built (module.to() "
              "or set_data does that): move or cast the module before",
              parameters_[i].name));
  }
}

shm::StepRecord Engine::verdict(std::optional<double> loss) const {
  const Hyperparameters& h = hyperparameters_;
  shm::StepRecord verdict{};
  verdict.step = step_;
  verdict.decoupled = h.decoupled ? 1 : 0;
  verdict.lr = h.lr;
  verdict.beta1 = h.beta1;
  verdict.beta2 = h.beta2;
  verdict.eps = h.eps;
  verdict.weight_decay = h.weight_decay;
  verdict.grad_scale = 1.0 / (environment_.world_size * loss_scale_);
  verdict.metric = loss.value_or(std::numeric_limits<double>::quiet_NaN());
  verdict.gathers = stats_.gathers;
  verdict.evictions = stats_.evictions;
  verdict.h2d_bytes = stats_.h2d_bytes;
  verdict.d2h_bytes = stats_.d2h_bytes;
  verdict.device_bytes = device_.allocated_bytes();
  return verdict;
}

void Engine::take_stats() {
  const StepStats now{step_,
                      rcache_->gathers(),
                      rcache_->hits(),
                      rcache_->evictions(),
                      device_.h2d_bytes(),
                      device_.d2h_bytes(),
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
  throw_if_error(session_->post_step(verdict(loss)));
  for (const auto& storage : storages_) storage->place(nullptr);
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

double Engine::mean_loss() { return value_or_throw(session_->wait_committed(step_)); }

void Engine::synchronize() { throw_if_error(session_->wait_finished(step_)); }

uint64_t Engine::weights_xxh64() {
  synchronize();
  return value_or_throw(session_->weights_xxh64());
}

}  // namespace elixir
