#include "models/torch_settings.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace elixir {
namespace {

// What one training sets would be there for the next.
class TorchSettings : public ::testing::Test {
 protected:
  ~TorchSettings() override { reset(); }

  void reset() {
    torch_.setDeterministicAlgorithms(false, false);
    torch_.setDeterministicFillUninitializedMemory(true);
    torch_.setSDPUseCuDNN(true);
    torch_.setSDPUseFlash(true);
    torch_.setSDPUseMemEfficient(true);
    std::vector<int64_t> order;
    for (const at::SDPBackend backend : order_) order.push_back(static_cast<int64_t>(backend));
    torch_.setSDPPriorityOrder(order);
  }

  at::Context& torch_ = at::globalContext();
  const std::array<at::SDPBackend, at::num_sdp_backends> order_ = torch_.sDPPriorityOrder();
};

struct Attention {
  AttentionChoice choice;
  bool cudnn, flash, efficient, cudnn_first;
};

// Flash attention is never cuDNN's; plain operators alone if asked for.
TEST_F(TorchSettings, AttentionIsAsAskedForAndNothingElseIsChanged) {
  for (const Attention& row : {Attention{AttentionChoice::kAuto, true, true, true, false},
                               {AttentionChoice::kFlash, false, true, true, false},
                               {AttentionChoice::kMath, false, false, false, false},
                               {AttentionChoice::kCudnn, true, true, true, true}}) {
    reset();
    TrainOptions options;
    options.attention = row.choice;
    set_up_torch(options);
    EXPECT_EQ(torch_.userEnabledCuDNNSDP(), row.cudnn);
    EXPECT_EQ(torch_.userEnabledFlashSDP(), row.flash);
    EXPECT_EQ(torch_.userEnabledMemEfficientSDP(), row.efficient);
    EXPECT_TRUE(torch_.userEnabledMathSDP());
    EXPECT_EQ(torch_.sDPPriorityOrder() == order_, !row.cudnn_first);
    if (row.cudnn_first) {
      EXPECT_EQ(torch_.sDPPriorityOrder().front(), at::SDPBackend::cudnn_attention);
    }
    EXPECT_FALSE(torch_.deterministicAlgorithms());
  }
}

TEST_F(TorchSettings, DeterministicOperatorsFillNoNewMemory) {
  TrainOptions options;
  options.deterministic = true;
  set_up_torch(options);
  EXPECT_TRUE(torch_.deterministicAlgorithms());
  EXPECT_FALSE(torch_.deterministicFillUninitializedMemory());
}

// Page faults of one tensor, of 64 MiB, of a row of them of which each is freed before the next:
// the fewest, since glibc may cut the first few freed blocks shorter than the next asks for.
int64_t faults_of_a_later_tensor() {
  constexpr int64_t kNumel = 16 << 20;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (int tensor = 0; tensor < 16; ++tensor) {
    rusage before, after;
    ::getrusage(RUSAGE_SELF, &before);
    at::ones({kNumel});
    ::getrusage(RUSAGE_SELF, &after);
    fewest = std::min<int64_t>(fewest, after.ru_minflt - before.ru_minflt);
  }
  return fewest;
}

TEST(KeepFreedMemory, SparesPageFaultsUnlessTheUserHasSetMalloc) {
  constexpr int64_t kLargePages = 16;  // fewer than a tensor has, of 2 MiB each
  ::setenv("MALLOC_TRIM_THRESHOLD_", "131072", 1);
  keep_freed_memory();
  EXPECT_GT(faults_of_a_later_tensor(), kLargePages);
  ::unsetenv("MALLOC_TRIM_THRESHOLD_");
  keep_freed_memory();
  EXPECT_LT(faults_of_a_later_tensor(), kLargePages);
}

}  // namespace
}  // namespace elixir
