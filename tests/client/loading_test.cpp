// What load() and Options::load_from promise beside the bits of a run (resume_test.cpp).

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "base/throw_error.h"
#include "tests/client/saved_module.h"
#include "tests/client/saved_states.h"
#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"
#include "tests/client/with_elixird.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Loads : public WithElixird {
 protected:
  const TemporaryFolder folder_;
};

TEST_F(Loads, GroupsFrozenParametersBuffersAndWhatIsLeftOutComeBack) {
  const std::string saved = folder_.path("model");
  Mixed model;
  AdamW optimizer(model, {.lr = 1e-2}, runtime(), groups_of(model));
  train(model, optimizer, 0, 4);
  {
    const at::NoGradGuard no_grad;
    model.scale.mul_(2);
    model.table.add_(3);
  }
  optimizer
      .save(saved, {.files = {{"config.json", "{}"}, {"user/words.txt", "of the user"}},
                    .program = "4 steps",
                    .rank_state = "random"})
      .wait();
  EXPECT_EQ(optimizer.steps(), 4u);
  train(model, optimizer, 4, 3);

  // A module without any values.
  std::optional<Mixed> other;
  {
    const MetaInit without_memory;
    other.emplace();
  }
  AdamW resumed(*other, {.lr = 1e-2}, runtime(saved), groups_of(*other));
  ASSERT_TRUE(resumed.loaded().has_value());
  EXPECT_EQ(resumed.loaded()->program, "4 steps");
  EXPECT_EQ(resumed.loaded()->rank_state, "random");
  EXPECT_EQ(resumed.steps(), 4u);
  EXPECT_TRUE(at::equal(other->table, at::arange(5, at::kInt) + 3)) << other->table;
  EXPECT_TRUE(at::equal(other->scale, at::ones({3}) * 3)) << other->scale;
  train(*other, resumed, 4, 3);
  EXPECT_EQ(resumed.weights_xxh64(), optimizer.weights_xxh64());
  EXPECT_EQ(xxh64_of(resumed.state_dict()), xxh64_of(optimizer.state_dict()));
  for (const auto& buffer : model.named_buffers()) {
    EXPECT_TRUE(at::equal(buffer.value(), other->named_buffers()[buffer.key()])) << buffer.key();
  }
  EXPECT_TRUE(at::equal(model.frozen->weight.clone(), other->frozen->weight.clone()));
  std::ifstream words(saved + "/user/words.txt");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(words), {}), "of the user");
}

TEST_F(Loads, ARunGoesBackToWhatItHadAndOnFromThere) {
  const std::string saved = folder_.path("model");
  MixedRun run(3);
  run.optimizer.save(saved).wait();
  const uint64_t states = run.states();
  run.train(3, 4);
  const uint64_t weights = run.weights();
  const at::Tensor before = run.model.head->weight.clone();
  const auto mean = run.model.norm->running_mean.clone();

  EXPECT_EQ(run.optimizer.load(saved).step, 3u);
  EXPECT_EQ(run.optimizer.steps(), 3u);
  EXPECT_EQ(run.states(), states);
  EXPECT_FALSE(at::equal(run.model.head->weight.clone(), before));  // not what was gathered
  run.train(3, 4);
  EXPECT_EQ(run.optimizer.steps(), 7u);
  EXPECT_EQ(run.weights(), weights);
  EXPECT_TRUE(at::equal(run.model.norm->running_mean, mean));
}

// The verdict on the step before it, which overflowed, changes nothing afterwards.
TEST_F(Loads, TheLossScaleIsTheOneThatWasSaved) {
  Options options = runtime();
  options.dynamic_loss_scale = DynamicLossScale{.init_scale = 256};
  torch::nn::Linear model(8, 4);
  AdamW optimizer(*model, {.lr = 1e-2}, options);
  const auto step = [&](double factor) {
    optimizer.zero_grad();
    (model->forward(at::ones({2, 8})).sum() * (optimizer.loss_scale() * factor)).backward();
    optimizer.step();
  };
  step(1);
  optimizer.save(folder_.path("saved")).wait();
  step(std::numeric_limits<double>::infinity());
  optimizer.load(folder_.path("saved"));
  EXPECT_EQ(optimizer.loss_scale(), 256);
  step(std::numeric_limits<double>::infinity());
  EXPECT_EQ(optimizer.loss_scale(), 128);
}

// As set_parameter() of all of them: Adam's counts are not those of a beginning either.
TEST_F(Loads, LoadingParametersAloneLeavesMomentsAndCounts) {
  const std::string saved = folder_.path("model");
  MixedRun run(2), set(2);
  run.optimizer.save(saved).wait();
  const auto then = run.optimizer.state_dict();
  run.train(2, 2);
  set.train(2, 2);
  const auto before = run.optimizer.state_dict();
  EXPECT_FALSE(run.optimizer.load(saved, /*states=*/false).has_states);
  for (const auto& item : set.model.named_parameters()) {
    if (!then.contains(item.key())) continue;
    set.optimizer.set_parameter(item.value(), then.at(item.key()).master);
  }
  for (const auto& [name, state] : run.optimizer.state_dict()) {
    EXPECT_TRUE(at::equal(state.exp_avg, before.at(name).exp_avg)) << name;
    EXPECT_TRUE(at::equal(state.exp_avg_sq, before.at(name).exp_avg_sq)) << name;
    EXPECT_TRUE(at::equal(state.master, then.at(name).master)) << name;
    EXPECT_EQ(state.step, 4u);
  }
  EXPECT_EQ(run.optimizer.steps(), 4u);
  run.model.norm->running_mean.copy_(set.model.norm->running_mean);
  run.model.norm->running_var.copy_(set.model.norm->running_var);
  run.train(4, 2);
  set.train(4, 2);
  EXPECT_EQ(run.states(), set.states());
}

TEST_F(Loads, AFolderThatDoesNotFitIsRefusedByName) {
  const std::string saved = folder_.path("model");
  MixedRun run(1);
  run.optimizer.save(saved).wait();
  const uint64_t weights = run.weights();

  Mixed renamed(48, "heat");
  EXPECT_THAT(refusal_of([&] { AdamW(renamed, {}, runtime(saved)); }, Code::kBadInput),
              AllOf(HasSubstr(saved), HasSubstr("heat."), HasSubstr("head.")));
  Mixed wider(64);
  EXPECT_THAT(refusal_of([&] { AdamW(wider, {}, runtime(saved)); }, Code::kBadInput),
              AllOf(HasSubstr(saved), HasSubstr("64"), HasSubstr("48")));
  torch::nn::Sequential smaller(torch::nn::Linear(16, 48));
  EXPECT_THAT(refusal_of([&] { AdamW(*smaller, {}, runtime(saved)); }, Code::kBadInput),
              HasSubstr(saved));
  EXPECT_THAT(refusal_of([&] { AdamW(wider, {}, runtime(folder_.path("none"))); }, Code::kBadInput),
              HasSubstr(folder_.path("none")));
  EXPECT_THAT(refusal_of([&] { run.optimizer.load(folder_.path()); }, Code::kBadInput),
              HasSubstr(folder_.path()));
  // Nothing was changed by any of them, and the run goes on.
  EXPECT_EQ(run.weights(), weights);
  run.train(1, 1);
  // One that was refused can be tried again with what fits.
  AdamW again(wider, {}, runtime());
}

// At the start and between two steps, where it is asked for with its states.
TEST_F(Loads, TheModelAloneIsALegalStart) {
  const std::string saved = folder_.path("model");
  MixedRun run(3);
  save_model(run.optimizer, saved, {{"config.json", "{}"}});
  EXPECT_FALSE(std::filesystem::exists(saved + "/optimizer"));
  MixedRun begun(0, runtime(saved));
  EXPECT_FALSE(begun.optimizer.loaded()->has_states);
  EXPECT_EQ(begun.optimizer.steps(), 0u);
  EXPECT_EQ(begun.weights(), run.weights());
  for (const auto& [name, state] : begun.optimizer.state_dict()) {
    EXPECT_EQ(state.exp_avg.count_nonzero().item<int64_t>(), 0) << name;
    EXPECT_EQ(state.step, 0u);
  }
  run.train(3, 2);
  EXPECT_FALSE(run.optimizer.load(saved).has_states);
  EXPECT_EQ(run.optimizer.steps(), 0u);
  EXPECT_EQ(run.states(), begun.states());
  run.train(5, 2);
  begun.train(5, 2);
  EXPECT_EQ(run.states(), begun.states());
}

// Turns a bit in the midst of a file's tensors.
void damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-100, std::ios::end);
  const auto at = file.tellg();
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(at);
  file.put(byte);
}

// This process's own memory, neither shared nor of files.
uint64_t anonymous_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == "RssAnon:" && file >> kib) return kib << 10;
  }
  return 0;
}

// The most that `work` takes beside what was there.
template <typename Work>
uint64_t peak_bytes(Work work) {
  const uint64_t before = anonymous_bytes();
  std::atomic<bool> over{false};
  std::atomic<int> looks = 0;
  uint64_t peak = before;
  std::thread watch([&] {
    while (!over) {
      peak = std::max(peak, anonymous_bytes());
      ++looks;
      // cannot fail by chance: whose peak must be seen waits for a look.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  work(looks);
  over = true;
  watch.join();
  return peak - before;
}

torch::nn::Sequential layers_of(int64_t width, int64_t count) {
  torch::nn::Sequential model;
  for (int64_t i = 0; i < count; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
  }
  return model;
}

TEST_F(Loads, NoTrainerHoldsTheModelThatItLoads) {
  constexpr int64_t kWidth = 1024, kLayers = 24;
  constexpr uint64_t kModelBytes = uint64_t{4} * kWidth * kWidth * kLayers;
  Options options = runtime();
  options.layout.chunk_numel = kWidth * kWidth;
  options.layout.rcache_blocks = 2;
  options.load_threads = 1;
  const std::string saved = folder_.path("model");
  // The control: a model that is built holds itself.
  const uint64_t built = peak_bytes([&](const std::atomic<int>& looks) {
    torch::nn::Sequential model = layers_of(kWidth, kLayers);
    AdamW optimizer(*model, {}, options);
    save_model(optimizer, saved);
    EXPECT_TRUE(test::eventually([&, last = looks.load()] { return looks > last + 1; }));
  });
  EXPECT_GT(built, kModelBytes);
  options.load_from = saved;
  const uint64_t loaded = peak_bytes([&](const auto&) {
    torch::nn::Sequential model = [&] {
      const MetaInit without_memory;
      return layers_of(kWidth, kLayers);
    }();
    AdamW optimizer(*model, {}, options);
  });
  // The rCache's blocks, 4 MiB each, lie in this process, too.
  EXPECT_LT(loaded, kModelBytes / 4);
}

TEST_F(Loads, DamagedBytesAreFoundOnTheWayAndBuffersBeforeAnythingChanges) {
  const std::string saved = folder_.path("model");
  const std::string buffers = saved + "/model-00001-of-00001.safetensors";
  MixedRun run(2);
  run.optimizer.save(saved).wait();
  const uint64_t weights = run.weights();
  run.train(2, 2);
  const uint64_t later = run.weights();
  const auto load = [&] { run.optimizer.load(saved); };
  damage(buffers);
  EXPECT_THAT(refusal_of(load, Code::kBadInput), HasSubstr("hash"));
  EXPECT_EQ(run.weights(), later);
  run.train(4, 1);
  damage(buffers);  // once more: it is whole

  damage(saved + "/optimizer/optimizer-00001-of-00001.safetensors");
  const auto names_it = AllOf(HasSubstr("optimizer-00001-of-00001.safetensors"),
                              HasSubstr("tensor"), HasSubstr("hash"));
  EXPECT_THAT(refusal_of([&] { MixedRun other(0, runtime(saved)); }, Code::kBadInput), names_it);
  // Its parameters alone are whole.
  Options options = runtime(saved);
  options.load_states = false;
  EXPECT_EQ(MixedRun(0, options).weights(), weights);
  // A run whose states are part of the folder's is over.
  EXPECT_THAT(refusal_of(load, Code::kBadInput), names_it);
  EXPECT_NE(refusal_of([&] { run.optimizer.synchronize(), run.weights(), run.train(5, 3); },
                       Code::kBadInput),
            "");
}

// Each node loads what it keeps; saving is not possible yet. Of states alone no node has all values
// to compare, as a warning says.
TEST_F(Loads, RanksOfSeveralNodes) {
  const std::string saved = folder_.path("model");
  uint64_t states = 0;
  {
    MixedRun run(2);
    run.optimizer.save(saved).wait();
    run.optimizer.save(saved + "-states", {.model = false}).wait();
    states = run.states();
  }
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);  // both nodes are this machine
  const elixir::testing::DaemonProcess other_node({"--no-bandwidth-probe"});
  run_ranks(2, [&](const LaunchEnvironment& environment) {
    Options options = runtime(saved);
    options.environment = environment;
    options.environment->local_rank = 0;
    options.environment->local_world_size = 1;
    if (environment.rank == 1) options.runtime_dir = other_node.folder().path;
    MixedRun run(0, options);
    EXPECT_EQ(run.states(), states);
    run.train(2, 1);
    EXPECT_NE(run.states(), states);
    EXPECT_EQ(run.optimizer.load(saved).step, 2u);
    EXPECT_EQ(run.states(), states);
    run.optimizer.load(saved, /*states=*/false);
    EXPECT_TRUE(run.optimizer.load(saved + "-states").has_states);
    EXPECT_EQ(run.states(), states);
    EXPECT_THAT(
        refusal_of([&] { run.optimizer.save(folder_.path("more")); }, Code::kInvalidArgument),
        HasSubstr("several nodes"));
  });
}

// Tensors that torch itself made without memory, and that no operator has filled.
struct Meta : torch::nn::Module {
  Meta() {
    weight = register_parameter("weight", at::empty({40, 30}, at::kMeta));
    fixed = register_parameter("fixed", at::empty({30}, at::kMeta), /*requires_grad=*/false);
    table = register_buffer("table", at::empty({4}, at::TensorOptions(at::kMeta).dtype(at::kLong)));
  }
  at::Tensor weight, fixed, table;
};

TEST_F(Loads, AModelOnTheMetaDeviceNeedsEveryValue) {
  const std::string saved = folder_.path("model");
  torch::nn::Module model;
  at::manual_seed(4);
  const at::Tensor weight = model.register_parameter("weight", at::randn({40, 30}));
  const at::Tensor fixed = model.register_parameter("fixed", at::randn({30}), false);
  const at::Tensor table = model.register_buffer("table", at::arange(4));
  AdamW optimizer(model, {}, runtime());
  optimizer.save(saved).wait();
  Meta meta;
  AdamW loaded(meta, {}, runtime(saved));
  EXPECT_EQ(loaded.weights_xxh64(), optimizer.weights_xxh64());
  EXPECT_TRUE(at::equal(meta.weight.clone(), weight.clone()));
  EXPECT_TRUE(at::equal(meta.fixed.clone(), fixed.clone()));
  EXPECT_TRUE(at::equal(meta.table, table));
  Meta more;
  more.register_buffer("more", at::empty({3}, at::kMeta));
  EXPECT_THAT(refusal_of([&] { AdamW(more, {}, runtime(saved)); }, Code::kBadInput),
              AllOf(HasSubstr("'more'"), HasSubstr("no values")));
}

}  // namespace
}  // namespace elixir::test
