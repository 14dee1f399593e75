// Folders without the model (SaveOptions::model): beside the values that were saved with them they
// make the run that was saved.

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "shm/shape.h"
#include "tests/client/saved_module.h"
#include "tests/client/saved_states.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

constexpr shm::Exchange kHost = shm::Exchange::kHost, kCollective = shm::Exchange::kCollective;
constexpr int64_t kSavedAt = 3, kMore = 3;

// How a run is laid out.
struct Layout {
  uint32_t ranks = 1;
  uint64_t chunk_numel = 2560;
  shm::Exchange exchange = kHost;
  double gpu_state_share = 0;
};

std::string text_of(const Layout& layout) {
  return fmt::format("{} ranks, chunks of {}, {} exchange, {} on the device", layout.ranks,
                     layout.chunk_numel, shm::exchange_name(layout.exchange),
                     layout.gpu_state_share);
}

void set_type(Options& options, ComputeType type) {
  options.dtype = type;
  options.buffer_dtype = type;
  if (type == ComputeType::kFp16) options.loss_scale = 4;  // it needs one
}

Options options_of(ComputeType type, const Layout& layout, const LaunchEnvironment& environment) {
  Options options = runtime();
  options.environment = environment;
  set_type(options, type);
  options.layout.chunk_numel = layout.chunk_numel;
  options.layout.rcache_blocks = 4;
  options.layout.exchange = layout.exchange;
  options.layout.gpu_state_share = layout.gpu_state_share;
  return options;
}

struct Bits {
  uint64_t saved = 0, end = 0;  // of the states when they were saved, and some steps later
};

class StatesAlone : public WithElixird {
 protected:
  // Rank 0's. Writes the values and the states apart; the states twice, since the second save knows
  // the hash of what is frozen.
  Bits train_and_save(ComputeType type, const Layout& layout, const std::string& name) {
    Bits bits;
    run_ranks(layout.ranks, [&](const LaunchEnvironment& environment) {
      MixedRun run(kSavedAt, options_of(type, layout, environment));
      save_model(run.optimizer, folder_.path(name));
      run.optimizer.save(states(name) + "-before", {.model = false}).wait();
      Saving saving = run.optimizer.save(states(name), {.model = false});
      const uint64_t saved = run.states();
      run.train(kSavedAt, kMore);
      saving.wait();
      const uint64_t end = run.states();
      if (environment.rank == 0) bits = {saved, end};
    });
    return bits;
  }
  // The values first. `at_start`: the program holds them when it builds its optimizer.
  Bits resume(ComputeType type, const Layout& layout, const std::string& name, bool at_start) {
    Bits bits;
    run_ranks(layout.ranks, [&](const LaunchEnvironment& environment) {
      Options options = options_of(type, layout, environment);
      Mixed model;
      {
        Options alone = runtime(folder_.path(name));
        set_type(alone, type);
        AdamW reads(model, {.lr = 1e-2}, alone);
        reads.release();
      }
      if (at_start) options.load_from = states(name);
      AdamW optimizer(model, {.lr = 1e-2}, options);
      const LoadReport report = at_start ? *optimizer.loaded() : optimizer.load(states(name));
      EXPECT_TRUE(report.has_states);
      EXPECT_EQ(optimizer.steps(), static_cast<uint64_t>(kSavedAt));
      const uint64_t saved = xxh64_of(optimizer.state_dict());
      train(model, optimizer, kSavedAt, kMore);
      const uint64_t end = xxh64_of(optimizer.state_dict());
      if (environment.rank == 0) bits = {saved, end};
    });
    return bits;
  }
  std::string states(const std::string& name) const { return folder_.path(name + "-states"); }

  const TemporaryFolder folder_;
};

TEST_F(StatesAlone, MakeTheRunThatWasSavedBesideItsValues) {
  const std::vector<Layout> layouts = {
      {1},       {1, 4096}, {1, 2560, kHost, 0.5},      {1, 2560, kHost, 1},
      {2, 3072}, {3},       {2, 2560, kCollective, 0.5}};
  const std::vector<std::pair<ComputeType, std::vector<Layout>>> all_saved = {
      {ComputeType::kFp32, {layouts[0], layouts[4]}},
      {ComputeType::kBf16, {layouts[0], layouts[2], layouts[4]}},
      {ComputeType::kFp16, {layouts[2]}}};
  for (const auto& [type, saved_as] : all_saved) {
    for (const Layout& saved : saved_as) {
      SCOPED_TRACE(fmt::format("{}, saved by {}", compute_type_name(type), text_of(saved)));
      const std::string name =
          fmt::format("{}-{}-{}", compute_type_name(type), saved.ranks, saved.gpu_state_share);
      const Bits whole = train_and_save(type, saved, name);
      EXPECT_FALSE(std::filesystem::exists(states(name) + "/model.safetensors.index.json"));
      EXPECT_FALSE(std::filesystem::exists(states(name) + "/model-00001-of-00001.safetensors"));
      bool at_start = false;
      for (const Layout& layout : layouts) {
        SCOPED_TRACE("resumed by " + text_of(layout));
        at_start = !at_start;
        const Bits resumed = resume(type, layout, name, at_start);
        EXPECT_EQ(resumed.saved, whole.saved);
        // Other rows or rounded sums make another run.
        if (layout.ranks == saved.ranks && layout.exchange == saved.exchange) {
          EXPECT_EQ(resumed.end, whole.end);
        }
      }
    }
  }
}

// All ranks hear it, each chunk on a device or not, and the run goes on as if nobody had asked.
TEST_F(StatesAlone, BesideOtherValuesAllRanksAreRefusedAndNothingIsChanged) {
  for (const Layout& layout : {Layout{1}, Layout{2}, Layout{1, 2560, kHost, 1},
                               Layout{1, 2560, kHost, 0.5}, Layout{2, 2560, kCollective, 0.5}}) {
    SCOPED_TRACE(text_of(layout));
    const std::string name = fmt::format(
        "{}-{}-{}", layout.ranks, shm::exchange_name(layout.exchange), layout.gpu_state_share);
    train_and_save(ComputeType::kBf16, layout, name);
    const auto remedy = AllOf(HasSubstr(states(name)), HasSubstr("holds states alone"),
                              HasSubstr("load the values that were saved beside it first"));
    std::atomic<uint32_t> refusals = 0;
    run_ranks(layout.ranks, [&](const LaunchEnvironment& environment) {
      MixedRun run(kSavedAt, options_of(ComputeType::kBf16, layout, environment));
      MixedRun* const runs = &run;
      run.train(kSavedAt, 1);
      const uint64_t before = run.states();
      EXPECT_THAT(refusal_of([&] { runs->optimizer.load(states(name)); }, Code::kBadInput), remedy);
      ++refusals;
      EXPECT_EQ(run.states(), before);
      EXPECT_EQ(run.optimizer.steps(), static_cast<uint64_t>(kSavedAt + 1));
      // One frozen value.
      run.optimizer.load(folder_.path(name), /*states=*/false);
      at::Tensor bias = run.optimizer.value(run.model.frozen->bias).to(at::kFloat);
      const at::Tensor own = bias.clone();
      bias[5] += 1;
      run.optimizer.set_parameter(run.model.frozen->bias, bias);
      EXPECT_THAT(refusal_of([&] { runs->optimizer.load(states(name)); }, Code::kBadInput), remedy);
      ++refusals;
      run.optimizer.set_parameter(run.model.frozen->bias, own);
      EXPECT_TRUE(run.optimizer.load(states(name)).has_states);
      EXPECT_EQ(run.optimizer.steps(), static_cast<uint64_t>(kSavedAt));
    });
    EXPECT_EQ(refusals, 2 * layout.ranks);
    EXPECT_THAT(refusal_of(
                    [&] {
                      run_ranks(layout.ranks, [&](const LaunchEnvironment& environment) {
                        Options options = options_of(ComputeType::kBf16, layout, environment);
                        options.load_from = states(name);
                        MixedRun run(0, options);
                      });
                    },
                    Code::kBadInput),
                remedy);
  }
}

// elixird has nothing to compare then, and rank 0 does.
TEST_F(StatesAlone, ARunWhoseStatesAreAllOnDevicesComparesItsValues) {
  for (const Layout& layout : {Layout{1, 2560, kHost, 1}, Layout{2, 2560, kCollective, 1}}) {
    const std::string saved = folder_.path(fmt::format("all-{}", layout.ranks));
    run_ranks(layout.ranks, [&](const LaunchEnvironment& environment) {
      at::manual_seed(3);
      torch::nn::Linear model(16, 48);
      AdamW optimizer(*model, {.lr = 1e-2}, options_of(ComputeType::kBf16, layout, environment));
      EXPECT_EQ(optimizer.plan().n_gpu_chunks, optimizer.plan().n_chunks);
      const auto step = [&] {
        model(wave({8, 16}, 1).to(at::kBFloat16)).square().mean().backward();
        optimizer.step();
      };
      step();
      optimizer.save(saved, {.model = false}).wait();
      const auto then = optimizer.state_dict();
      step();
      EXPECT_THAT(refusal_of([&] { optimizer.load(saved); }, Code::kBadInput),
                  HasSubstr("holds states alone"));
      optimizer.set_parameters({{"weight", then.at("weight").master.to(at::kBFloat16)},
                                {"bias", then.at("bias").master.to(at::kBFloat16)}});
      optimizer.load(saved);
      EXPECT_EQ(xxh64_of(optimizer.state_dict()), xxh64_of(then));
    });
  }
}

TEST_F(StatesAlone, TheTypeIsTheOneThatWasSaved) {
  train_and_save(ComputeType::kBf16, {}, "saved");
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kFp16}) {
    EXPECT_THAT(refusal_of([&] { resume(type, {}, "saved", true); }, Code::kBadInput),
                AllOf(HasSubstr("in bf16"), HasSubstr("in the same type")));
  }
}

TEST_F(StatesAlone, AreNoModelAndNeedStates) {
  train_and_save(ComputeType::kFp32, {}, "saved");
  Options options = runtime(states("saved"));
  options.load_states = false;
  EXPECT_THAT(refusal_of([&] { MixedRun run(0, options); }, Code::kBadInput),
              HasSubstr("it holds states alone, without the model"));
  MixedRun run(1);
  EXPECT_THAT(refusal_of(
                  [&] {
                    run.optimizer.save(folder_.path("none"),
                                       {.optimizer_states = false, .model = false});
                  },
                  Code::kInvalidArgument),
              HasSubstr("nothing would be left"));
  // Parameters without values: the folder has none for them.
  const auto load_meta = [&] {
    struct Meta : torch::nn::Module {
      Meta() { weight = register_parameter("weight", at::empty({40, 30}, at::kMeta)); }
      at::Tensor weight;
    };
    torch::nn::Module model;
    model.register_parameter("weight", at::ones({40, 30}));
    AdamW optimizer(model, {}, runtime());
    optimizer.save(folder_.path("plain"), {.model = false}).wait();
    Meta meta;
    AdamW loaded(meta, {}, runtime(folder_.path("plain")));
  };
  EXPECT_THAT(refusal_of(load_meta, Code::kInvalidArgument), HasSubstr("no values"));
}

}  // namespace
}  // namespace elixir::test
