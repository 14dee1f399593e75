// Vocabularies of today's models, by files of their sizes: the token embedding does not set the
// length of chunks, and so a GPU may be smaller.

#include <algorithm>
#include <cstdint>
#include <string>

#include "planner/chunks/chunk_search.h"
#include "planner/models/model_request.h"
#include "planner/search/benefit.h"
#include "planner/search/candidate.h"
#include "planner/search/make_plan.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

// A chunk is at least as long as the largest parameter of a layer. What may lie beside that one is
// small: its bias, norms, the keys' and values' projections of grouped-query attention. A longer
// chunk makes every block longer, and pays where an operator's weight and bias come into one chunk
// or the token embedding's run ends with a fuller chunk: 1.08 times is the most of the models here.
// A quarter leaves room for other layers, and is far from the embedding, which is 8 to 49 times.
constexpr double kMostOfLargest = 1.25;
// Lengths are not all tried; those that are not take a little less memory at most.
constexpr double kMostLost = 0.02;
constexpr uint64_t kTriedBetween = 2000;

struct Model {
  std::string name;  // of transformer_names(), or of a file in examples/configs
  uint64_t numel;    // as published
};

class Vocabularies : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    const std::string& name = GetParam().name;
    const bool known = name.starts_with("gpt2");
    const TransformerConfig config = must(
        config_of({.model = known ? name : "",
                   .config_path = known ? "" : std::string(EXAMPLE_CONFIGS "/") + name + ".json"}));
    ASSERT_EQ(transformer_numel(config), GetParam().numel);
    profile_ = testing::gpt_profile(config, {.batch = 1, .seq = 1024});
    for (const ProfiledParameter& param : profile_.params) {
      longest_ = std::max(longest_, param.numel);
      const bool in_layer = param.name.find(".h.") != std::string::npos ||
                            param.name.find(".layers.") != std::string::npos;
      if (in_layer) largest_of_layer_ = std::max(largest_of_layer_, param.numel);
    }
    machine_ = testing::a100_server(1);
    machine_.gpu_memory_bytes = machine_.host_memory_bytes = uint64_t{1} << 42;
  }

  // What chunks and states take of a GPU at least, at one length; 0: at any.
  uint64_t least_bytes(uint64_t chunk_numel = 0) const {
    const Result<LeastPlan> least =
        least_plan(profile_, machine_, {.layout = {.chunk_numel = chunk_numel}});
    EXPECT_TRUE(least.ok() && least->fits()) << chunk_numel;
    return least.ok() ? chosen_gpu_bytes(least->bytes) : 0;
  }

  // With memory for so many bytes of chunks and states.
  Result<PlannedStep> plan_within(uint64_t bytes) const {
    Machine machine = machine_;
    machine.gpu_memory_bytes =
        profile_.buffer_bytes +
        static_cast<uint64_t>(kActivationFactor * static_cast<double>(profile_.activation_bytes) +
                              static_cast<double>(bytes) / kAllocatedShare);
    return make_plan(profile_, machine, {});
  }

  ModelProfile profile_;
  Machine machine_;
  uint64_t longest_ = 0, largest_of_layer_ = 0;
};

TEST_P(Vocabularies, TheLeastPlanHasChunksAsLongAsLayersNeed) {
  const uint64_t least = least_bytes();
  EXPECT_FALSE(plan_within(least - 4096).ok());
  const PlannedStep tight = must(plan_within(least + 4096));
  const Plan& plan = tight.plan;
  EXPECT_GE(plan.chunk_numel, largest_of_layer_);
  EXPECT_LE(static_cast<double>(plan.chunk_numel),
            kMostOfLargest * static_cast<double>(largest_of_layer_));
  EXPECT_EQ(plan.chosen.long_blocks, 1u) << "operators read one embedding at a time";
  EXPECT_GE(plan.long_numel, longest_);
  EXPECT_LT(plan.long_numel, longest_ + plan.chunk_numel);
}

// As before there were long blocks: chunks as long as the token embedding, or longer.
TEST_P(Vocabularies, AGpuMayBeHalfAsLarge) {
  uint64_t before = UINT64_MAX;
  for (const ChunkLength& length : chunk_lengths(profile_)) {
    before = std::min(before, least_bytes(length.numel));
  }
  EXPECT_GE(before, 3 * longest_ * profile_.dtype_bytes());  // a block, and two for gradients
  EXPECT_LE(2 * least_bytes(), before);
}

TEST_P(Vocabularies, NoOtherLengthTakesMuchLess) {
  const uint64_t found = least_bytes();
  const std::vector<PackedSize> sizes = packed_sizes(profile_);
  const uint64_t stride = std::max(kAlignNumel, largest_of_layer_ / kTriedBetween);
  uint64_t before = 0;
  for (uint64_t numel = largest_of_layer_; numel < 2 * largest_of_layer_; numel += stride) {
    const uint64_t chunk_numel = packed_length(sizes, numel).chunk_numel;
    if (chunk_numel == before) continue;  // it packs alike
    before = chunk_numel;
    EXPECT_LE(static_cast<double>(found),
              (1 + kMostLost) * static_cast<double>(least_bytes(chunk_numel)))
        << chunk_numel;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Vocabularies,
    ::testing::Values(Model{"gpt2-small", 124'439'808}, Model{"gpt2-medium", 354'823'168},
                      Model{"llama-3-8b", 8'030'261'248}, Model{"qwen-3-0.6b", 596'049'920},
                      Model{"qwen-2-7b", 7'615'616'512}, Model{"gemma-2-2b", 2'614'341'888},
                      Model{"gemma-3-1b", 999'885'952}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
      return name;
    });

}  // namespace
}  // namespace elixir::planner
