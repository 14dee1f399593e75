// What LibTorch's tensors say beside their bytes (signs and zeros that are put off, strides,
// storage offsets), and threads that meet at one .grad, with torch::optim::AdamW beside. The rows
// of docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <torch/autograd.h>
#include <torch/library.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchMemory : public InEveryMode {};
IN_EVERY_MODE(TorchMemory);

// Of 300 steps some 40 lost a gradient where nothing kept the threads apart.
TEST_P(TorchMemory, BackwardInTwoThreadsAtOnce) {
  constexpr int64_t kSteps = 100, kThreads = 2;
  if (collective()) GTEST_SKIP() << "ranks must gather alike";
  if (!fp32()) GTEST_SKIP() << "torch rounds the sum of two gradients to BF16";
  like_torch(steps(kSteps, [](Module& net, Trainer& t, int64_t i) {
    if (i % 2 == 1) {  // dropped without a word to Elixir, before gradients that are new
      parameter(net, "2.weight").square().sum().backward();
      net.zero_grad();
    }
    std::atomic<int64_t> ready = 0;
    std::vector<at::Tensor> losses;
    for (int64_t k = 0; k < kThreads; ++k) losses.push_back(net_loss(net, kThreads * i + k, t));
    std::vector<std::thread> threads;
    for (const at::Tensor& loss : losses) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        EXPECT_EQ(message_of([&] { loss.backward(); }), "");
      });
    }
    for (std::thread& thread : threads) thread.join();
  }));
}

at::Tensor flat_gradients(Module& net, const Trainer& t) {
  int64_t numel = 0;
  for (const at::Tensor& p : net.parameters()) numel += p.numel();
  const at::Tensor flat = at::zeros({numel}, t.dtype);
  int64_t at = 0;
  for (at::Tensor& p : net.parameters()) {
    p.mutable_grad() = flat.narrow(0, at, p.numel()).view(p.sizes());
    at += p.numel();
  }
  return flat;
}

// As programs have it that reduce all gradients at once.
TEST_P(TorchMemory, GradientsInABufferOfTheProgram) {
  like_torch([](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor flat = flat_gradients(net, t);  // (torch's zero_grad() refuses views)
      for (int64_t k = 0; k < 2; ++k) net_loss(net, 2 * i + k, t).backward();
      t.step();
    }
  });
}

// What torch would see in the step.
TEST_P(TorchMemory, AGradientWrittenThroughAnotherHandleIsRefused) {
  const auto written = [&](const std::string& name, const Program& program) {
    refused({name + "' was written through another tensor", "register_hook"}, program);
  };
  written("", [](Module& net, Trainer& t) {
    const at::Tensor flat = flat_gradients(net, t);
    net_loss(net, 0, t).backward();
    flat.mul_(0.01);
    t.step();
  });
  written("'0.bias", [](Module& net, Trainer& t) {
    const at::Tensor assigned = wave({16}, 3, t.dtype);
    parameter(net, "0.bias").mutable_grad() = assigned;
    net_loss(net, 0, t).backward();
    assigned.zero_();
    t.step();
  });
  written("'1.bias", [](Module& net, Trainer& t) {  // autograd adds both gradients to it
    const at::Tensor both = wave({16}, 3, t.dtype);
    for (const char* name : {"1.bias", "0.bias"}) parameter(net, name).mutable_grad() = both;
    net_loss(net, 0, t).backward();
    t.step();
  });
  // Where zero_grad() was not called, torch's .grad has that memory in the next step, too.
  written("", [](Module& net, Trainer& t) {
    const at::Tensor flat = flat_gradients(net, t);
    net_loss(net, 0, t).backward();
    t.step();
    flat.zero_();
    net_loss(net, 1, t).backward();
    t.step();
  });
  // After zero_grad() all is as before.
  like_torch([](Module& net, Trainer& t) {
    const at::Tensor flat = flat_gradients(net, t);
    net_loss(net, 50, t).backward();
    flat.mul_(0.01);
    for (at::Tensor& p : net.parameters()) p.mutable_grad().reset();
    plain_steps(0, 3, net, t);
  });
}

// LibTorch marks such tensors and leaves their bytes as they were.
TEST_P(TorchMemory, GradientsWhoseSignIsPutOff) {
  like_torch([](Module& net, Trainer& t) {
    parameter(net, "0.weight").register_hook([](const at::Tensor& grad) {
      const at::Tensor negated = at::_neg_view(grad);
      EXPECT_TRUE(negated.is_neg());
      return negated;
    });
    plain_steps(0, 3, net, t);
    t.zero_grad();
    for (auto& p : net.parameters()) p.mutable_grad() = at::_neg_view(wave(p.sizes(), 9, t.dtype));
    t.step();
  });
}

TEST_P(TorchMemory, GradientsOfZerosThatAreNotThere) {
  elixir_alone([](Module& net, Trainer& t) {
    const at::Tensor bias = parameter(net, "2.bias");
    const at::Tensor before = bias.detach().clone();
    for (auto& p : net.parameters()) {
      p.mutable_grad() = at::_efficientzerotensor(p.sizes(), p.options().requires_grad(false));
    }
    t.set_group(0, {.weight_decay = 0.0});
    t.step();
    EXPECT_TRUE(bias.detach().clone().equal(before));
  });
}

TEST_P(TorchMemory, AGradientOfAnotherLayoutIsRefused) {
  refused({"'0.weight'", "SparseCsr", "to_dense()"}, [](Module& net, Trainer& t) {
    const at::Tensor weight = parameter(net, "0.weight");
    weight.mutable_grad() = wave(weight.sizes(), 1, t.dtype).to_sparse_csr();
    t.step();
  });
}

// Of parameters that it reads, and that the step left as they were.
TEST_P(TorchMemory, AGraphOfBeforeAStepOfOtherParameters) {
  if (mode().ranks > 1) GTEST_SKIP() << "another rank may have updated them";
  if (!fp32()) GTEST_SKIP() << "as in FP32";
  like_torch([](Module& net, Trainer& t) {
    const at::Tensor loss = parameter(net, "2.bias").to(at::kFloat).square().sum();
    parameter(net, "0.bias").to(at::kFloat).square().sum().backward();
    t.step();
    t.zero_grad();
    loss.backward();
    t.step();
  });
}

TEST_P(TorchMemory, AParameterWhoseSignIsPutOff) {
  const Build build = net_with([](Module& net) {
    for (const char* name : {"0.weight", "2.bias"}) {
      const at::Tensor p = parameter(net, name);
      p.set_data(at::_neg_view(p.detach().neg()));
    }
    parameter(net, "2.bias").set_requires_grad(false);
  });
  like_torch({.build = build}, kThreeSteps);
  like_torch([](Module& net, Trainer& t) {
    plain_steps(0, 1, net, t);
    const at::Tensor bias = parameter(net, "0.bias");
    t.set_parameter(bias, at::_neg_view(wave(bias.sizes(), 3)));
    plain_steps(1, 2, net, t);
  });
}

TEST_P(TorchMemory, AsStridedBeyondAParameterIsRefused) {
  const auto view = [&](std::vector<int64_t> sizes, std::optional<int64_t> offset) {
    return [sizes = std::move(sizes), offset](Module& net, Trainer&) {
      parameter(net, "2.bias").detach().as_strided(sizes, {1}, offset).clone();
    };
  };
  const Settings settings{.options = {.layout = {.chunk_numel = 4096}}};  // with all parameters
  for (const auto& program : {view({5}, std::nullopt), view({1}, 4096 - 1)}) {
    refused({"as_strided", "'2.bias'", "storage_offset()"}, settings, program);
  }
  like_torch(settings, steps(3, [](Module& net, Trainer& t, int64_t i) {
               const at::Tensor bias = parameter(net, "2.bias");
               const at::Tensor part = bias.as_strided({2}, {2}, bias.storage_offset() + 1);
               (net_loss(net, i, t) + part.to(at::kFloat).square().sum()).backward();
             }));
}

TEST_P(TorchMemory, ATensorSetToAParametersMemoryIsRefused) {
  refused({"aten::set_", "'0.weight'", "clone()"}, [](Module& net, Trainer& t) {
    at::Tensor other = at::empty({0}, t.dtype);
    other.set_(parameter(net, "0.weight").detach());
  });
}

TEST_P(TorchMemory, WeightsThatAreNotContiguousBecomeSoAndTheLogSaysIt) {
  if (mode().ranks > 1) GTEST_SKIP() << "as alone";
  const Build build = net_with([](Module& net) {
    const at::Tensor weight = parameter(net, "0.weight");
    weight.set_data(weight.detach().t().contiguous().t());
  });
  like_torch({.build = build}, kThreeSteps);
  ::testing::internal::CaptureStderr();
  elixir_alone({.build = build}, [](Module& net, Trainer&) {
    EXPECT_TRUE(parameter(net, "0.weight").is_contiguous());
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("event=parameter_layout parameter=\"0.weight\""), std::string::npos) << log;
}

TEST_P(TorchMemory, MomentsOfTorchsClassAreRefused) {
  refused({"state()", "elixird"}, [](Module& net, Trainer& t) {
    plain_steps(0, 1, net, t);
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    t.torch_optimizer().state()[parameter(net, "0.bias").unsafeGetTensorImpl()] = std::move(state);
    plain_steps(1, 1, net, t);
  });
}

// Called inside of the operator below.
thread_local std::function<void()> inside_an_operator;

at::Tensor call_inside(const at::Tensor& tensor) {
  inside_an_operator();
  return tensor.clone();
}

TEST_P(TorchMemory, AStepInsideOfAnOperatorIsRefused) {
  const auto inside = [&](const char* who, const Program& call) {
    refused({who, "inside of an operator"}, [&](Module& net, Trainer& t) {
      inside_an_operator = [&] { call(net, t); };
      const at::Tensor bias = parameter(net, "0.bias").detach();
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("elixir_test::call_inside", "")
          .typed<at::Tensor(const at::Tensor&)>()
          .call(bias);
    });
  };
  inside("step()", [](Module&, Trainer& t) { t.step(); });
  inside("set_parameter()", [](Module& net, Trainer& t) {
    const at::Tensor bias = parameter(net, "2.bias");
    t.set_parameter(bias, at::zeros(bias.sizes()));
  });
}

}  // namespace
}  // namespace elixir::test

TORCH_LIBRARY(elixir_test, library) { library.def("call_inside(Tensor tensor) -> Tensor"); }
TORCH_LIBRARY_IMPL(elixir_test, CPU, library) {
  library.impl("call_inside", &elixir::test::call_inside);
}
