// GradOffload over an exchange that only notes what it is asked: in which order, for which
// micro-step, and what lies in its memory when a micro-step ends.

#include "client/train/grad_offload.h"

#include <ATen/Functions.h>

#include <cstring>
#include <string>
#include <utility>

#include "client/device/host_device.h"
#include "tests/client/unasked_exchange.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

constexpr uint64_t kNumel = 128;  // a parameter's
constexpr uint32_t kChunks = 2;   // of two parameters and of one
constexpr float kStale = 99;      // what memory holds that nobody has zeroed

shm::Shape shape_of_case() {
  return {.type = ComputeType::kFp32, .ranks = 1, .n_chunks = kChunks, .chunk_numel = 3 * kNumel};
}

// Parameter 1 begins behind a gap.
std::vector<shm::ParameterPlace> places_of_case() {
  return {{"a", 0, 0, kNumel}, {"b", 0, 2 * kNumel, kNumel}, {"c", 1, kNumel, kNumel}};
}

class NotingExchange final : public UnaskedExchange {
 public:
  explicit NotingExchange(bool zeroes, bool on_device) : zeroes_(zeroes), on_device_(on_device) {
    for (std::vector<float>& memory : memory_) memory.assign(3 * kNumel, kStale);
  }

  std::vector<std::string> take_calls() { return std::exchange(calls_, {}); }
  // The first element of each third of the chunk, when its last micro-step ended.
  std::vector<float> ended(uint32_t chunk) const {
    const std::vector<float>& values = ended_[chunk];
    if (values.empty()) return {};
    return {values[0], values[kNumel], values[2 * kNumel]};
  }
  const std::vector<float>& all_ended(uint32_t chunk) const { return ended_[chunk]; }

  bool begin_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) override {
    calls_.push_back(fmt::format("begin {} {}.{}", chunk, step, micro_step));
    memory_[chunk].assign(3 * kNumel, zeroes_ ? 0 : kStale);
    return zeroes_;
  }
  GradTarget grad_target(uint32_t chunk) override {
    calls_.push_back(fmt::format("target {}", chunk));
    return {reinterpret_cast<std::byte*>(memory_[chunk].data()), on_device_};
  }
  void end_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) override {
    calls_.push_back(fmt::format("end {} {}.{}", chunk, step, micro_step));
    ended_[chunk] = memory_[chunk];
  }
  bool others_go_on() override { return false; }
  void discard_grads() override { calls_.push_back("discard"); }

 private:
  const bool zeroes_, on_device_;
  std::vector<std::string> calls_;
  std::vector<float> memory_[kChunks], ended_[kChunks];
};

struct Way {
  bool zeroes, on_device;
};

class GradOffloadTest : public ::testing::TestWithParam<Way> {
 protected:
  explicit GradOffloadTest(uint32_t most_micro_steps = 0)
      : exchange_(GetParam().zeroes, GetParam().on_device),
        offload_(device_, exchange_, shape_of_case(), places_of_case(), most_micro_steps) {}

  void take(uint32_t parameter, float value, uint32_t step = 1) {
    offload_.take(parameter, at::full({static_cast<int64_t>(kNumel)}, value), step);
  }
  // What a parameter costs whose gradient did not come.
  std::vector<std::string> with_zeros(std::vector<std::string> before, uint32_t chunk,
                                      size_t parameters, const std::vector<std::string>& after) {
    if (!GetParam().zeroes)
      before.insert(before.end(), parameters, fmt::format("target {}", chunk));
    before.insert(before.end(), after.begin(), after.end());
    return before;
  }
  // Of a gap nobody says anything but where memory begins with zeros.
  float gap() const { return GetParam().zeroes ? 0 : kStale; }

  HostDevice device_;
  NotingExchange exchange_;
  GradOffload offload_;
};

INSTANTIATE_TEST_SUITE_P(Ways, GradOffloadTest,
                         ::testing::Values(Way{true, true}, Way{false, true}, Way{false, false}),
                         [](const auto& info) {
                           return std::string(info.param.zeroes ? "ZeroedBlocks" : "Blocks") +
                                  (info.param.on_device ? "OnTheDevice" : "OnTheHost");
                         });

TEST_P(GradOffloadTest, AMicroStepBeginsWithAChunksFirstGradientAndEndsWithItsLast) {
  EXPECT_FALSE(offload_.pending());
  take(1, 11);
  take(2, 12);
  take(0, 10);
  EXPECT_THAT(exchange_.take_calls(),
              ElementsAre("begin 0 1.1", "target 0", "begin 1 1.1", "target 1", "end 1 1.1",
                          "target 0", "end 0 1.1"));
  EXPECT_THAT(exchange_.ended(0), ElementsAre(10, gap(), 11));
  EXPECT_THAT(exchange_.ended(1), ElementsAre(gap(), 12, gap()));
  EXPECT_TRUE(offload_.pending());
}

TEST_P(GradOffloadTest, ASecondGradientBeginsTheNextMicroStep) {
  take(0, 10);
  EXPECT_FALSE(offload_.begins_micro_step(1));
  EXPECT_TRUE(offload_.begins_micro_step(0));
  EXPECT_TRUE(offload_.begins_micro_step(2)) << "nothing of its chunk has come";
  exchange_.take_calls();
  take(0, 20);
  EXPECT_EQ(exchange_.take_calls(), with_zeros({}, 0, 1, {"end 0 1.1", "begin 0 1.2", "target 0"}));
  EXPECT_THAT(exchange_.ended(0), ElementsAre(10, gap(), 0)) << "parameter 1 had none";
  take(1, 21);
  EXPECT_THAT(exchange_.take_calls(), ElementsAre("target 0", "end 0 1.2"));
  EXPECT_THAT(exchange_.ended(0), ElementsAre(20, gap(), 21));
}

TEST_P(GradOffloadTest, ChunksCountTheirMicroStepsThemselves) {
  for (const float value : {1.0f, 2.0f, 3.0f}) take(2, value);
  take(0, 10);
  take(1, 11);
  EXPECT_THAT(exchange_.take_calls(),
              ElementsAre("begin 1 1.1", "target 1", "end 1 1.1", "begin 1 1.2", "target 1",
                          "end 1 1.2", "begin 1 1.3", "target 1", "end 1 1.3", "begin 0 1.1",
                          "target 0", "target 0", "end 0 1.1"));
}

TEST_P(GradOffloadTest, WhatHasNoGradientCountsAsZeroInEveryStep) {
  take(1, 11);
  exchange_.take_calls();
  offload_.complete(1);
  std::vector<std::string> expected = with_zeros({}, 0, 1, {"end 0 1.1", "begin 1 1.1"});
  expected = with_zeros(expected, 1, 1, {"end 1 1.1"});
  EXPECT_EQ(exchange_.take_calls(), expected);
  EXPECT_THAT(exchange_.ended(0), ElementsAre(0, gap(), 11));
  EXPECT_THAT(exchange_.ended(1), ElementsAre(gap(), 0, gap()));
  offload_.forget();

  offload_.complete(2);  // not one gradient
  expected = with_zeros({"begin 0 2.1"}, 0, 2, {"end 0 2.1", "begin 1 2.1"});
  EXPECT_EQ(exchange_.take_calls(), with_zeros(expected, 1, 1, {"end 1 2.1"}));
  EXPECT_THAT(exchange_.ended(0), ElementsAre(0, gap(), 0));
}

TEST_P(GradOffloadTest, WhatIsCompleteStaysAsItIs) {
  take(0, 10);
  take(1, 11);
  take(2, 12);
  exchange_.take_calls();
  offload_.complete(1);
  EXPECT_THAT(exchange_.take_calls(), IsEmpty());
}

// A second micro-step of some parameters alone is filled up, too.
TEST_P(GradOffloadTest, AnOpenMicroStepIsCompleted) {
  take(0, 10);
  take(1, 11);
  take(2, 12);
  take(1, 21);
  exchange_.take_calls();
  offload_.complete(1);
  EXPECT_EQ(exchange_.take_calls(), with_zeros({}, 0, 1, {"end 0 1.2"}));
  EXPECT_THAT(exchange_.ended(0), ElementsAre(0, gap(), 21));
}

TEST_P(GradOffloadTest, AfterADiscardAllBeginsAnew) {
  take(0, 10);
  take(2, 12);
  EXPECT_TRUE(offload_.pending());
  offload_.discard();
  EXPECT_FALSE(offload_.pending());
  EXPECT_TRUE(offload_.begins_micro_step(1));
  exchange_.take_calls();
  take(1, 21);
  take(0, 20);
  take(2, 22);
  EXPECT_THAT(exchange_.take_calls(),
              ElementsAre("begin 0 1.1", "target 0", "target 0", "end 0 1.1", "begin 1 1.1",
                          "target 1", "end 1 1.1"));
  EXPECT_THAT(exchange_.ended(0), ElementsAre(20, gap(), 21));
}

// A zero_grad() more or less on one rank makes no difference.
TEST_P(GradOffloadTest, WhereNothingHasComeNothingIsDiscarded) {
  offload_.discard();
  take(0, 10);
  offload_.discard();
  offload_.discard();
  EXPECT_THAT(exchange_.take_calls(), ElementsAre("begin 0 1.1", "target 0", "discard"));
  take(0, 10);
  offload_.complete(1);
  offload_.forget();
  exchange_.take_calls();
  offload_.discard();
  EXPECT_THAT(exchange_.take_calls(), IsEmpty());
}

TEST_P(GradOffloadTest, AfterAStepAllBeginsAnew) {
  take(0, 10);
  take(0, 11);
  offload_.complete(1);
  offload_.forget();
  EXPECT_FALSE(offload_.pending());
  exchange_.take_calls();
  take(0, 20, 2);
  EXPECT_THAT(exchange_.take_calls(), ElementsAre("begin 0 2.1", "target 0"));
}

TEST_P(GradOffloadTest, GradientsNeedNotBeDense) {
  const auto numel = static_cast<int64_t>(kNumel);
  const at::Tensor counting = at::arange(numel, at::kFloat);
  offload_.take(0, counting.view({2, numel / 2}).t(), 1);  // its elements lie in another order
  offload_.take(1, (counting * 3).to_sparse(), 1);
  const std::vector<float>& values = exchange_.all_ended(0);
  for (uint64_t i = 0; i < kNumel; ++i) {
    const uint64_t transposed = i / 2 + i % 2 * (kNumel / 2);
    EXPECT_EQ(values[i], static_cast<float>(transposed)) << i;
    EXPECT_EQ(values[2 * kNumel + i], static_cast<float>(3 * i)) << i;
  }
}

// ---- immediate updates ----

class ImmediateUpdates : public GradOffloadTest {
 protected:
  ImmediateUpdates() : GradOffloadTest(/*most_micro_steps=*/2) {}
};

INSTANTIATE_TEST_SUITE_P(Ways, ImmediateUpdates, ::testing::Values(Way{false, true}));

TEST_P(ImmediateUpdates, AChunkIsSettledAfterAsManyMicroStepsAsWereAnnounced) {
  take(2, 1);
  EXPECT_FALSE(offload_.has_all_gradients(1));
  take(2, 2);
  EXPECT_TRUE(offload_.has_all_gradients(1));
  EXPECT_FALSE(offload_.has_all_gradients(0));
  EXPECT_FALSE(offload_.has_all_gradients(kChunks)) << "a frozen chunk has no gradients";
  offload_.forget();
  EXPECT_FALSE(offload_.has_all_gradients(1));
}

TEST_P(ImmediateUpdates, AGradientTooManyIsRefused) {
  take(2, 1);
  take(2, 2);
  exchange_.take_calls();
  expect_thrown(Code::kInvalidArgument, {"after the 2 backward passes of step 7"},
                [&] { take(2, 3, 7); });
  EXPECT_THAT(exchange_.take_calls(), IsEmpty());
  take(0, 1, 7);  // of a chunk that was not updated
}

TEST_P(ImmediateUpdates, OnlyWhatNoUpdateHasTakenIsDiscarded) {
  take(2, 1);
  offload_.discard();
  take(2, 1);
  take(2, 2);
  exchange_.take_calls();
  expect_thrown(Code::kInvalidArgument, {"zero_grad() between backward() and step()"},
                [&] { offload_.discard(); });
  EXPECT_THAT(exchange_.take_calls(), IsEmpty());
}

TEST(DeferredUpdates, NeverSettle) {
  HostDevice device;
  NotingExchange exchange(true, true);
  GradOffload offload(device, exchange, shape_of_case(), places_of_case(), 0);
  for (int i = 0; i < 5; ++i) offload.take(2, at::ones({static_cast<int64_t>(kNumel)}), 1);
  EXPECT_FALSE(offload.has_all_gradients(1));
  offload.discard();
}

}  // namespace
}  // namespace elixir::test
