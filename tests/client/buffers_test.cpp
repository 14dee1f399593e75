// What lies in no chunk: buffers on their way from rank 0, types and classes that chunks do not
// have.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "client/elixir.h"
#include "client/train/weights.h"
#include "shm/shape.h"
#include "tests/client/saved_module.h"
#include "tests/client/small_training.h"
#include "tests/client/unasked_exchange.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

class CountedBroadcasts final : public UnaskedExchange {
 public:
  explicit CountedBroadcasts(const shm::Shape& shape)
      : most_(shape.side_bytes() - sizeof(shm::SideHeader)) {}
  void broadcast(std::span<std::byte> bytes) override { waits += (bytes.size() - 1) / most_ + 1; }

  size_t waits = 0;  // of all ranks, for one another

 private:
  const size_t most_;  // bytes that go through the side memory at a time
};

TEST(BuffersAtTheStart, AMebibyteOfThemTakesAFewWaitsHoweverItIsCut) {
  for (const int64_t count : {1, 16, 1024}) {
    RunPlan plan;
    plan.shape.ranks = 2;
    CountedBroadcasts exchange(plan.shape);
    std::vector<MovedTensor> rest;
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor values = at::zeros({(int64_t{1} << 20) / count}, at::kByte);
      rest.push_back({"mask" + std::to_string(i), values, values});
    }
    share_the_rest(exchange, plan, rest);
    EXPECT_GE(exchange.waits, 2u);  // what there is, and its bytes
    EXPECT_LE(exchange.waits, 8u) << count << " buffers";
  }
}

// Counts its calls in a buffer, as a batch norm does its batches.
struct Counting : torch::nn::Module {
  Counting() {
    layer = register_module("layer", torch::nn::Linear(8, 8));
    seen = register_buffer("seen", at::zeros({3}));
    whole = register_buffer("whole", at::zeros({2}, at::kLong));
    none = register_buffer("none", at::zeros({0}));
  }
  at::Tensor loss(double add) {
    seen.add_(add);
    whole.add_(static_cast<int64_t>(add));
    return layer(at::ones({2, 8})).square().mean();
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor seen, whole, none;
};

class Buffers : public WithElixird {};

TEST_F(Buffers, AreRankZerosAfterEveryStepWhereThatIsAskedFor) {
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const bool asked : {true, false}) {
      run_ranks(3, [&](const LaunchEnvironment& environment) {
        at::manual_seed(4);
        Counting model;
        Options options;
        options.environment = environment;
        options.broadcast_buffers = asked;
        options.layout.exchange = exchange;
        AdamW optimizer(model, AdamWOptions{}, options);
        const double own = environment.rank + 1;
        double expected = 0;
        for (int step = 1; step <= 3; ++step) {
          optimizer.zero_grad();
          model.loss(own).backward();
          optimizer.step();
          expected += asked ? 1 : own;  // rank 0 adds 1
          EXPECT_TRUE(at::equal(model.seen, at::full({3}, expected)))
              << shm::exchange_name(exchange) << ", step " << step << ": " << model.seen;
          EXPECT_EQ(model.whole[1].item<int64_t>(), static_cast<int64_t>(expected));
        }
      });
    }
  }
}

// ---- types ----

struct OfOtherTypes : torch::nn::Module {
  OfOtherTypes() {
    layer =
        register_module("layer", torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)));
    base = register_parameter("base", at::ones({16, 16}, at::kBFloat16), false);
    exact = register_parameter("exact", at::ones({4}, at::kDouble), false);
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor base, exact;
};

std::string log_of_a_start(const Options& options) {
  OfOtherTypes model;
  ::testing::internal::CaptureStderr();
  { const AdamW optimizer(model, AdamWOptions{}, options); }
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(Buffers, FrozenParametersThatChangeTheirTypeAreToldWithTheirBytes) {
  Options options;
  const std::string log = log_of_a_start(options);
  EXPECT_THAT(log, HasSubstr("event=frozen_type parameters=1 built_as=BFloat16 now=Float "
                             "bytes=\"1.00 KiB\" before=\"512 B\""));
  EXPECT_THAT(log, HasSubstr("event=frozen_type parameters=1 built_as=Double now=Float"));
  options.dtype = ComputeType::kBf16;
  EXPECT_THAT(log_of_a_start(options), Not(HasSubstr("built_as=BFloat16")));
  options.leave_out = [](const std::string& name, const at::Tensor&) {
    return name != "layer.weight";
  };
  EXPECT_THAT(log_of_a_start(options), Not(HasSubstr("frozen_type")));
}

TEST_F(Buffers, AParameterOfATensorClassOfItsOwnIsRefusedByName) {
  for (const bool trained : {false, true}) {
    OfOtherTypes model;
    at::Tensor& tensor = trained ? model.layer->weight : model.base;
    tensor.unsafeGetTensorImpl()->set_python_dispatch(true);  // as torch.Tensor's subclasses have
    EXPECT_THAT(refusal_of([&] { const AdamW optimizer(model, AdamWOptions{}, Options{}); },
                           Code::kInvalidArgument),
                AllOf(HasSubstr(trained ? "'layer.weight'" : "'base'"),
                      HasSubstr("tensor class of its own"), HasSubstr("Options::leave_out")));
    tensor.unsafeGetTensorImpl()->set_python_dispatch(false);
  }
}

}  // namespace
}  // namespace elixir::test
