// A device that fails once, under a program that catches the error and goes on: its numbers are
// torch's, or the next call says what is lost.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <climits>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/client/adamw_on_device.h"
#include "tests/client/calling_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

class PassingFailure : public WithElixird {};

constexpr const char* kBroken = "the device is broken";

// Which of the calls that are made while it is armed fails.
struct Fault {
  int at = INT_MAX;
  std::atomic<bool> armed = false;
  std::atomic<int> calls = 0;
  std::atomic<bool> moved_gradient = false;  // the call that failed
};

class FaultyDevice final : public CallingDevice {
 public:
  explicit FaultyDevice(Fault* fault) : fault_(*fault) {}

 private:
  void called(DeviceCall call) override {
    if (call == DeviceCall::kLook) return;
    if (!fault_.armed || fault_.calls++ != fault_.at) return;
    fault_.moved_gradient = call == DeviceCall::kMove;
    throw Error(error(Code::kInternal, kBroken));
  }

  Fault& fault_;
};

std::shared_ptr<torch::nn::Module> seeded_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16),
                               torch::nn::Linear(16, 8), torch::nn::Linear(8, 4))
      .ptr();
}

at::Tensor loss_of(torch::nn::Module& net, int64_t step, at::ScalarType dtype = at::kFloat) {
  const at::Tensor x = at::arange(48, at::kFloat).add(7 * step).sin().reshape({6, 8}).to(dtype);
  return net.as<torch::nn::SequentialImpl>()->forward(x).to(at::kFloat).square().mean();
}

std::vector<at::Tensor> copies_of(torch::nn::Module& net) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (const at::Tensor& each : net.parameters()) result.push_back(each.clone());
  for (const at::Tensor& each : net.buffers()) result.push_back(each.clone());
  return result;
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].scalar_type(), b[i].scalar_type()) << i;
    EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  }
}

// ---- in backward() ----

struct Case {
  UpdateMode update = UpdateMode::kDeferred;
  double gpu_state_share = 0;
  // Between the error and step().
  std::function<void(Optimizer&, torch::nn::Module&, int64_t step)> goes_on = {};
};

struct Ended {
  std::vector<at::Tensor> parameters;
  bool caught = false;  // in backward(), by the program
  std::string error;    // later; empty: none
};

Ended train(const Case& job, Fault& fault) {
  Ended ended;
  fault.calls = 0;
  run_ranks(1, [&](const LaunchEnvironment& environment) {
    at::set_num_threads(1);
    const auto net = seeded_net();
    net->eval();  // statistics would see a repeated forward
    Options options;
    options.environment = environment;
    options.update = job.update;
    options.layout.gpu_state_share = job.gpu_state_share;
    options.layout.chunk_numel = 128;
    options.layout.rcache_blocks = 2;
    AdamWOnDevice optimizer(*net, {}, options, std::make_unique<FaultyDevice>(&fault));
    try {
      for (int64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const at::Tensor loss = loss_of(*net, step);
        fault.armed = step == 1;
        try {
          loss.backward();
        } catch (const Error&) {
          ended.caught = true;
        }
        const bool failed = fault.armed.exchange(false) && ended.caught;
        if (failed) job.goes_on(optimizer, *net, step);
        optimizer.step();
      }
      optimizer.synchronize();
      const at::NoGradGuard no_grad;
      for (const at::Tensor& each : net->parameters()) ended.parameters.push_back(each.clone());
    } catch (const Error& failure) {
      ended.error = failure.what();
    }
  });
  return ended;
}

// Each call of the device in one backward(), in turn.
void at_each_call(const Case& job, const std::function<void(const Fault&, const Ended&)>& check) {
  Fault none;
  const Ended whole = train(job, none);
  ASSERT_EQ(whole.error, "");
  ASSERT_GT(none.calls, 20);
  for (int at = 0; at < none.calls; ++at) {
    SCOPED_TRACE(at);
    Fault fault;
    fault.at = at;
    const Ended ended = train(job, fault);
    EXPECT_TRUE(ended.caught || !ended.error.empty());
    if (ended.caught) check(fault, ended);
  }
}

const Case kDeferredCase{}, kStatesOnDevice{UpdateMode::kDeferred, 0.5};

TEST_F(PassingFailure, InBackwardIsMendedByZeroGradAndAnotherBackward) {
  for (Case job : {kDeferredCase, kStatesOnDevice}) {
    job.goes_on = [](Optimizer& optimizer, torch::nn::Module& net, int64_t step) {
      optimizer.zero_grad();
      loss_of(net, step).backward();
    };
    Fault none;
    const Ended whole = train(job, none);
    int mended = 0;
    at_each_call(job, [&](const Fault&, const Ended& ended) {
      if (!ended.error.empty()) {  // where nothing may throw, the device is given up
        EXPECT_THAT(ended.error, HasSubstr(kBroken));
        return;
      }
      ++mended;
      expect_same(ended.parameters, whole.parameters);
    });
    EXPECT_GT(mended, 10);
  }
}

// Else a step would be made without a gradient that torch has.
TEST_F(PassingFailure, InBackwardThatLosesAGradientIsAnErrorWithoutZeroGrad) {
  const auto steps = [](Optimizer&, torch::nn::Module&, int64_t) {};
  const auto another_backward = [](Optimizer&, torch::nn::Module& net, int64_t step) {
    loss_of(net, step).backward();
  };
  const std::vector<Case> cases = {{UpdateMode::kDeferred, 0, steps},
                                   {UpdateMode::kDeferred, 0.5, steps},
                                   {UpdateMode::kDeferred, 0, another_backward},
                                   {UpdateMode::kImmediate, 0, steps}};
  for (const Case& job : cases) {
    int lost = 0;
    at_each_call(job, [&](const Fault& fault, const Ended& ended) {
      if (!fault.moved_gradient) return;  // what had come counts, as in torch
      ++lost;
      EXPECT_THAT(ended.error, AllOf(HasSubstr("a gradient of step 2 was lost"),
                                     HasSubstr("Optimizer::zero_grad()")));
    });
    EXPECT_GT(lost, 3);
  }
}

// ---- while an optimizer is built ----

// A twin that Elixir has never seen is trained beside it.
void expect_as_it_was(torch::nn::Module& net) {
  const auto twin = seeded_net();
  loss_of(*twin, 9).backward();
  expect_same(copies_of(net), copies_of(*twin));
  for (const at::Tensor& each : net.parameters()) {
    EXPECT_NE(each.data_ptr(), nullptr);
    EXPECT_TRUE(each.requires_grad());
    EXPECT_TRUE(each.grad().defined());
  }
  torch::optim::SGD own(net.parameters(), 1e-2), its(twin->parameters(), 1e-2);
  for (int64_t step = 0; step < 2; ++step) {
    loss_of(net, step).backward();  // adds to the gradients of before
    loss_of(*twin, step).backward();
    own.step();
    its.step();
  }
  expect_same(copies_of(net), copies_of(*twin));
}

TEST_F(PassingFailure, WhileAnOptimizerIsBuiltLeavesTheModuleAsItWas) {
  for (const double share : {0.0, 0.5}) {
    for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
      bool failed = true;
      int at = 0;
      for (; failed; ++at) {
        SCOPED_TRACE(at);
        Fault fault;
        fault.at = at;
        fault.armed = true;
        run_ranks(1, [&](const LaunchEnvironment& environment) {
          at::set_num_threads(1);
          const auto net = seeded_net();
          loss_of(*net, 9).backward();
          Options options;
          options.environment = environment;
          options.dtype = dtype;
          options.buffer_dtype = dtype;
          options.layout.gpu_state_share = share;
          options.layout.chunk_numel = 128;
          options.layout.rcache_blocks = 2;
          try {
            const AdamWOnDevice optimizer(*net, {}, options,
                                          std::make_unique<FaultyDevice>(&fault));
            fault.armed = false;
            failed = false;
          } catch (const Error& failure) {
            EXPECT_THAT(failure.what(), HasSubstr(kBroken));
            expect_as_it_was(*net);
          }
        });
      }
      EXPECT_GT(at, 10);
    }
  }
}

}  // namespace
}  // namespace elixir::test
