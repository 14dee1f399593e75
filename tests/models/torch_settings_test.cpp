#include "models/torch_settings.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>

namespace elixir {
namespace {

// What one training sets would be there for the next.
class TorchSettings : public ::testing::Test {
 protected:
  ~TorchSettings() override {
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

TEST_F(TorchSettings, DeterministicOperatorsFillNoNewMemory) {
  TrainOptions options;
  options.deterministic = true;
  set_up_torch(options);
  EXPECT_TRUE(torch_.deterministicAlgorithms());
  EXPECT_FALSE(torch_.deterministicFillUninitializedMemory());
}

TEST_F(TorchSettings, NothingIsChangedUnlessAskedFor) {
  set_up_torch({});
  EXPECT_FALSE(torch_.deterministicAlgorithms());
  EXPECT_TRUE(torch_.userEnabledCuDNNSDP());
  EXPECT_TRUE(torch_.userEnabledFlashSDP());
  EXPECT_EQ(torch_.sDPPriorityOrder(), order_);
}

TEST_F(TorchSettings, FlashAttentionIsNeverCudnns) {
  TrainOptions options;
  options.attention = AttentionChoice::kFlash;
  set_up_torch(options);
  EXPECT_FALSE(torch_.userEnabledCuDNNSDP());
  EXPECT_TRUE(torch_.userEnabledFlashSDP());
  EXPECT_TRUE(torch_.userEnabledMemEfficientSDP());
}

TEST_F(TorchSettings, CudnnsAttentionComesFirst) {
  TrainOptions options;
  options.attention = AttentionChoice::kCudnn;
  set_up_torch(options);
  EXPECT_EQ(torch_.sDPPriorityOrder().front(), at::SDPBackend::cudnn_attention);
}

TEST_F(TorchSettings, PlainOperatorsAloneIfAskedFor) {
  TrainOptions options;
  options.attention = AttentionChoice::kMath;
  set_up_torch(options);
  EXPECT_FALSE(torch_.userEnabledCuDNNSDP());
  EXPECT_FALSE(torch_.userEnabledFlashSDP());
  EXPECT_FALSE(torch_.userEnabledMemEfficientSDP());
  EXPECT_TRUE(torch_.userEnabledMathSDP());
}

// Page faults of a tensor as large as one that was just freed.
int64_t faults_of_the_next_tensor() {
  constexpr int64_t kNumel = 16 << 20;
  at::ones({kNumel});
  rusage before, after;
  ::getrusage(RUSAGE_SELF, &before);
  at::ones({kNumel});
  ::getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(KeepFreedMemory, SparesPageFaultsUnlessTheUserHasSetMalloc) {
  constexpr int64_t kLargePages = 16;  // fewer than a tensor has, of 2 MiB each
  ::setenv("MALLOC_TRIM_THRESHOLD_", "131072", 1);
  keep_freed_memory();
  EXPECT_GT(faults_of_the_next_tensor(), kLargePages);
  ::unsetenv("MALLOC_TRIM_THRESHOLD_");
  keep_freed_memory();
  EXPECT_LT(faults_of_the_next_tensor(), kLargePages);
}

}  // namespace
}  // namespace elixir
