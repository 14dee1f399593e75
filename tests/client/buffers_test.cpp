// What lies in no chunk: buffers on their way from rank 0, types and classes that chunks do not
// have.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "base/throw_error.h"
#include "client/device/host_device.h"
#include "client/elixir.h"
#include "client/exchange/host_exchange.h"
#include "client/session/session.h"
#include "client/train/weights.h"
#include "shm/shape.h"
#include "tests/client/saved_module.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"
#include "tests/support/run_threads.h"

namespace elixir::test {
namespace {

// Two ranks over an elixird. A scalar lies alone in the first chunk, as CLIP's logit_scale does: a
// way through that chunk would take a wait for each element.
class BuffersAtTheStart : public WithElixird {
 protected:
  struct Started {
    uint64_t waits = 0;  // of this rank for the other one, which the buffers add to a start
    std::vector<MovedTensor> rest;
  };

  static Started start(uint32_t rank, const std::string& job, std::vector<MovedTensor> rest) {
    constexpr uint64_t kChunkNumel = 1280;
    RunPlan plan;
    plan.shape = {.type = ComputeType::kFp32,
                  .ranks = 2,
                  .n_chunks = 2,
                  .n_parameters = 2,
                  .chunk_numel = kChunkNumel};
    const std::vector<shm::ParameterPlace> places = {{"scale", 0, 0, 1},
                                                     {"weight", 1, 0, kChunkNumel}};
    SessionOptions options;
    options.job = job;
    options.rank = options.local_rank = rank;
    options.local_ranks = 2;
    options.start_daemon = false;
    const auto session = value_or_throw(Session::attach(plan.shape, places, options));
    HostDevice device;
    HostExchange exchange(*session, device, options.rules, places, /*grad_blocks=*/0);
    const std::vector<float> values(kChunkNumel);
    for (uint32_t chunk = 0; chunk < 2; ++chunk) exchange.load(chunk, values.data());
    exchange.await_loaded(CollectiveKind::kLoad);

    std::vector<MovedTensor> none;
    const uint64_t before = session->waits_for_ranks();
    share_the_rest(exchange, plan, none);
    const uint64_t without = session->waits_for_ranks();
    share_the_rest(exchange, plan, rest);
    const uint64_t with = session->waits_for_ranks();
    EXPECT_GE(without - before, 1u) << "what there is, at least, is compared";
    exchange.await_loaded(CollectiveKind::kRelease);  // neither ends before the other has read
    return {with - without - (without - before), std::move(rest)};
  }

  // `bytes` in `count` buffers, and one byte more in the last.
  static std::vector<MovedTensor> buffers(int64_t bytes, int64_t count, uint32_t rank) {
    std::vector<MovedTensor> rest;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t numel = bytes / count + (i + 1 == count ? 1 : 0);
      const at::Tensor values =
          rank == 0 ? ((at::arange(numel) + i) % 251).to(at::kByte) : at::zeros({numel}, at::kByte);
      rest.push_back({"mask" + std::to_string(i), values, values});
    }
    return rest;
  }
};

TEST_F(BuffersAtTheStart, AMebibyteOfThemTakesAFewWaitsHoweverItIsCut) {
  struct Row {
    int64_t mebibytes, count;
    uint64_t pieces, waits;  // at least and at most
  };
  int number = 0;
  for (const Row& row : {Row{1, 1, 2, 8}, Row{1, 16, 2, 8}, Row{1, 1024, 2, 8}, Row{5, 1, 6, 8}}) {
    SCOPED_TRACE(::testing::Message() << row.count << " buffers, " << row.mebibytes << " MiB");
    const std::string job = "buffers-" + std::to_string(++number);
    run_threads(2, [&](uint32_t rank) {
      const Started started = start(rank, job, buffers(row.mebibytes << 20, row.count, rank));
      EXPECT_GE(started.waits, row.pieces) << "rank " << rank;
      EXPECT_LE(started.waits, row.waits) << "rank " << rank;
      const std::vector<MovedTensor> expected = buffers(row.mebibytes << 20, row.count, 0);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(started.rest[i].values, expected[i].values))
            << "rank " << rank << ", " << expected[i].name;
      }
    });
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
