#include "tests/client/torch_ways.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "client/tensors/replace_data.h"
#include "client/tensors/scalar_type.h"
#include "tests/client/small_training.h"

namespace elixir::test {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

std::mutex generator;  // torch's, while a model is built

std::shared_ptr<torch::nn::Module> build_seeded(const Build& build) {
  const std::lock_guard lock(generator);
  at::manual_seed(5);
  return build();
}

Tensors copies_of(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  Tensors result;
  for (const auto& item : model.named_parameters()) result[item.key()] = item.value().clone();
  for (const auto& item : model.named_buffers()) result[item.key()] = item.value().clone();
  return result;
}

// torch::optim::AdamW; in 16 bits over FP32 masters, as Elixir has them.
class TorchTrainer final : public Trainer {
 public:
  TorchTrainer(torch::nn::Module& model, ComputeType type, const Settings& settings)
      : model_(&model), type_(type), settings_(&settings) {
    dtype = scalar_type(type);
    const AdamWOptions& h = settings.hyper;
    std::vector<ParamGroup> groups;
    if (settings.groups) groups = settings.groups(model);
    std::unordered_set<c10::TensorImpl*> grouped;
    for (const ParamGroup& group : groups) {
      for (const at::Tensor& t : group.parameters) grouped.insert(t.unsafeGetTensorImpl());
    }
    ParamGroup own;
    const auto& leave_out = settings.options.leave_out;
    for (const auto& item : model.named_parameters()) {
      const at::Tensor& t = item.value();
      const bool kept = !leave_out || !leave_out(item.key(), t);
      if (kept && t.requires_grad() && grouped.insert(t.unsafeGetTensorImpl()).second) {
        own.parameters.push_back(t);
      }
    }
    groups.insert(groups.begin(), own);
    std::vector<torch::optim::OptimizerParamGroup> torchs;
    for (const ParamGroup& group : groups) {
      std::vector<at::Tensor> masters;
      for (at::Tensor t : group.parameters) {
        at::Tensor master = t;
        if (type != ComputeType::kFp32) {
          master = t.detach().clone().requires_grad_();
          t.set_data(t.detach().to(dtype));
          masters_.push_back({t, master});
        }
        masters.push_back(master);
      }
      auto options = std::make_unique<torch::optim::AdamWOptions>(group.lr.value_or(h.lr));
      options->betas(group.betas.value_or(h.betas)).eps(group.eps.value_or(h.eps));
      options->weight_decay(group.weight_decay.value_or(h.weight_decay));
      torchs.emplace_back(masters, std::move(options));
    }
    for (at::Tensor t : model.parameters()) {
      if (!t.requires_grad()) t.set_data(t.detach().to(dtype));
    }
    optimizer_ = std::make_unique<torch::optim::AdamW>(torchs);
    for (const auto& group : optimizer_->param_groups())
      first_lr_.push_back(group.options().get_lr());
  }

  void zero_grad() override {
    optimizer_->zero_grad();
    for (auto& [half, master] : masters_) half.mutable_grad().reset();
  }
  void step() override {
    for (auto& [half, master] : masters_) {
      master.mutable_grad() = half.grad().defined() ? half.grad().to(at::kFloat) : at::Tensor();
    }
    const Tensors before = masters();
    optimizer_->step();
    const at::NoGradGuard no_grad;
    for (auto& [half, master] : masters_) half.copy_(master);
    note_moves(before);
  }
  // Of the steps that moved the parameter's master, the shortest way; 0: none did.
  double shortest_move(const std::string& name) const {
    const auto found = shortest_moves_.find(name);
    return found == shortest_moves_.end() ? 0 : found->second;
  }

  void set_group(uint32_t group, const ParamGroup& changes) override {
    auto& options =
        static_cast<torch::optim::AdamWOptions&>(optimizer_->param_groups()[group].options());
    if (changes.lr) options.lr(*changes.lr);
    if (changes.betas) options.betas(*changes.betas);
    if (changes.eps) options.eps(*changes.eps);
    if (changes.weight_decay) options.weight_decay(*changes.weight_decay);
  }
  void add_group(const ParamGroup& group) override {
    std::vector<at::Tensor> moved;
    for (const at::Tensor& parameter : group.parameters) moved.push_back(master_of(parameter));
    auto& own = optimizer_->param_groups()[0];
    std::erase_if(own.params(), [&](const at::Tensor& t) {
      return std::any_of(moved.begin(), moved.end(),
                         [&](const at::Tensor& m) { return m.is_same(t); });
    });
    auto options = std::make_unique<torch::optim::AdamWOptions>(
        static_cast<const torch::optim::AdamWOptions&>(own.options()));
    // (Torch's add_param_group refuses parameters that have states.)
    optimizer_->param_groups().emplace_back(moved, std::move(options));
    first_lr_.push_back(first_lr_[0]);
    set_group(static_cast<uint32_t>(optimizer_->param_groups().size()) - 1, group);
  }
  torch::optim::Optimizer& torch_optimizer() override { return *optimizer_; }
  void set_parameter(const at::Tensor& parameter, const at::Tensor& values) override {
    const at::NoGradGuard no_grad;
    master_of(parameter).copy_(values);
    at::Tensor(parameter).copy_(values);
  }
  void release() override {
    for (auto& [half, master] : masters_) {
      half.mutable_grad().reset();
      replace_data(half, master.detach());
    }
    dtype = at::kFloat;
  }
  void again() override {
    release();
    const std::vector<uint32_t> taken = ranks;
    const std::map<std::string, double> moves = shortest_moves_;
    *this = TorchTrainer(*model_, type_, *settings_);
    ranks = taken;
    shortest_moves_ = moves;
  }
  Trainer& another(torch::nn::Module& model) override {
    another_ = std::make_unique<TorchTrainer>(model, type_, *settings_);
    return *another_;
  }
  void set_lr(double lr) override {
    size_t i = 0;
    for (auto& group : optimizer_->param_groups()) {
      group.options().set_lr(lr * first_lr_[i++] / first_lr_[0]);
    }
  }

 private:
  at::Tensor master_of(const at::Tensor& parameter) const {
    for (const auto& [half, master] : masters_) {
      if (half.is_same(parameter)) return master;
    }
    return parameter;
  }
  Tensors masters() const {
    Tensors result;
    for (const auto& item : model_->named_parameters()) {
      result[item.key()] = master_of(item.value()).detach().clone();
    }
    return result;
  }
  void note_moves(const Tensors& before) {
    for (const auto& [name, master] : masters()) {
      const double move = distance(before.at(name), master);
      double& shortest = shortest_moves_[name];
      if (move > 0) shortest = shortest > 0 ? std::min(shortest, move) : move;
    }
  }

  torch::nn::Module* model_;
  ComputeType type_;
  const Settings* settings_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::vector<std::pair<at::Tensor, at::Tensor>> masters_;
  std::vector<double> first_lr_;
  std::map<std::string, double> shortest_moves_;  // by name, in the L2 norm
  std::unique_ptr<TorchTrainer> another_;
};

class ElixirTrainer final : public Trainer {
 public:
  ElixirTrainer(torch::nn::Module& model, const Mode& mode, const Settings& settings,
                const LaunchEnvironment& environment)
      : model_(model), mode_(mode), settings_(settings), environment_(environment) {
    optimizer_.emplace(make(model, mode, settings, environment));
    dtype = scalar_type(mode.dtype);
    ranks = {environment.rank};
  }
  void zero_grad() override { optimizer_->zero_grad(); }
  void step() override { optimizer_->step(); }
  void set_lr(double lr) override { optimizer_->set_lr(lr); }
  void set_group(uint32_t group, const ParamGroup& changes) override {
    optimizer_->set_param_group(group, changes);
  }
  void add_group(const ParamGroup& group) override { optimizer_->add_param_group(group); }
  torch::optim::Optimizer& torch_optimizer() override { return optimizer_->torch_optimizer(); }
  void set_parameter(const at::Tensor& parameter, const at::Tensor& values) override {
    optimizer_->set_parameter(parameter, values);
  }
  void release() override {
    optimizer_->release();
    dtype = at::kFloat;
  }
  void again() override {
    release();
    optimizer_.reset();
    environment_.job += "#again";  // as a launched process names its second optimizer
    optimizer_.emplace(make(model_, mode_, settings_, environment_));
    dtype = scalar_type(mode_.dtype);
  }
  Trainer& another(torch::nn::Module& model) override {
    LaunchEnvironment environment = environment_;
    environment.job += "#another";
    another_ = std::make_unique<ElixirTrainer>(model, mode_, settings_, environment);
    return *another_;
  }
  Optimizer* elixir() override { return &*optimizer_; }

 private:
  static AdamW make(torch::nn::Module& model, const Mode& mode, const Settings& settings,
                    const LaunchEnvironment& environment) {
    const c10::InferenceMode inference(settings.in_inference_mode);
    const Options options = options_of(mode, settings, environment);
    const auto groups = settings.groups ? settings.groups(model) : std::vector<ParamGroup>{};
    if (settings.of_tensors) return AdamW(tensors_of(model), settings.hyper, options, groups);
    return AdamW(model, settings.hyper, options, groups);
  }
  static Options options_of(const Mode& mode, const Settings& settings,
                            const LaunchEnvironment& environment) {
    Options options = settings.options;
    options.dtype = mode.dtype;
    options.layout.exchange = mode.exchange;
    options.environment = environment;
    return options;
  }

  torch::nn::Module& model_;
  const Mode mode_;
  const Settings& settings_;
  LaunchEnvironment environment_;
  std::optional<AdamW> optimizer_;
  std::unique_ptr<ElixirTrainer> another_;
};

void run_through_elixir(const Mode& mode, const Settings& settings, const Program& program,
                        const std::function<void(uint32_t rank, torch::nn::Module&)>& at_end) {
  run_ranks(mode.ranks, [&](const LaunchEnvironment& environment) {
    at::set_num_threads(1);
    const auto model = build_seeded(settings.build);
    ElixirTrainer trainer(*model, mode, settings, environment);
    program(*model, trainer);
    if (at_end) at_end(environment.rank, *model);
  });
}

void expect_equal_buffers(const at::Tensor& ours, const at::Tensor& torchs) {
  EXPECT_TRUE(at::allclose(ours.to(at::kDouble), torchs.to(at::kDouble), 1e-6, 1e-9));
}

// Each parameter by itself, and so closely that one missed step would show. `shortest_move` is the
// shortest of torch's steps with it; 0: none is known.
void expect_close(const Mode& mode, const Settings& settings, const at::Tensor& ours,
                  const at::Tensor& torchs, double shortest_move) {
  const double tolerance = mode.dtype == ComputeType::kFp32 ? settings.tolerance : kBf16Closeness;
  const double difference = distance(ours, torchs);
  EXPECT_LE(difference, tolerance * norm_of(torchs));
  if (shortest_move == 0) return;
  EXPECT_LE(difference, shortest_move / 4);
}

}  // namespace

void expect_like_torch(const Mode& mode, const Settings& settings, const Program& program) {
  std::vector<Tensors> ours(mode.ranks);
  run_through_elixir(mode, settings, program, [&](uint32_t rank, torch::nn::Module& model) {
    ours[rank] = copies_of(model);
  });
  at::set_num_threads(1);
  const auto model = build_seeded(settings.build);
  const Tensors first = copies_of(*model);
  TorchTrainer trainer(*model, mode.dtype, settings);
  trainer.ranks.resize(mode.ranks);
  std::iota(trainer.ranks.begin(), trainer.ranks.end(), 0u);
  program(*model, trainer);
  const Tensors torchs = copies_of(*model);
  bool moved = false;
  for (const auto& [name, tensor] : torchs) {
    SCOPED_TRACE(name);
    for (uint32_t rank = 0; rank < mode.ranks; ++rank) {
      ASSERT_TRUE(ours[rank].contains(name));
      const at::Tensor& mine = ours[rank].at(name);
      ASSERT_EQ(mine.sizes(), tensor.sizes());
      EXPECT_EQ(mine.scalar_type(), tensor.scalar_type());
      EXPECT_TRUE(at::equal(mine, ours[0].at(name))) << "of rank " << rank;
    }
    if (!model->named_parameters().contains(name)) {
      expect_equal_buffers(ours[0].at(name), tensor);
      continue;
    }
    expect_close(mode, settings, ours[0].at(name), tensor, trainer.shortest_move(name));
    moved = moved || distance(first.at(name), tensor) > 0;
  }
  EXPECT_TRUE(moved) << "nothing was trained";
}

void expect_error(const Mode& mode, const std::vector<std::string>& texts, const Settings& settings,
                  const Program& program) {
  try {
    run_through_elixir(mode, settings, program, {});
    ADD_FAILURE() << "no error";
  } catch (const std::exception& failure) {
    for (const std::string& text : texts) {
      EXPECT_NE(std::string(failure.what()).find(text), std::string::npos)
          << "'" << text << "' is not in: " << failure.what();
    }
  }
}

void run_elixir(const Mode& mode, const Settings& settings, const Program& program) {
  run_through_elixir(mode, settings, program, {});
}

}  // namespace elixir::test
