// Modules, their parameters, buffers and memory as torch's users handle them, with
// torch::optim::AdamW beside: equal weights, or an error that names the remedy. The rows of
// docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/nn/modules.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>
#include <vector>

#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchModules : public InEveryMode {};
IN_EVERY_MODE(TorchModules);
IN_BF16_ON_TWO_RANKS(TorchModules);

const Program kNothing = [](Module&, Trainer&) {};

// ---- which parameters train ----

TEST_P(TorchModules, FrozenAndThawedBetweenSteps) {
  like_torch([](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    parameter(net, "0.weight").requires_grad_(false);
    parameter(net, "2.bias").requires_grad_(false);
    plain_steps(2, 2, net, t);
    parameter(net, "0.weight").requires_grad_(true);
    plain_steps(4, 1, net, t);
    parameter(net, "2.bias").requires_grad_(true);
    plain_steps(5, 2, net, t);
  });
}

// As a GAN's critic is, while its generator's loss goes through it.
TEST_P(TorchModules, FrozenBetweenTwoPassesOfAStep) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    net_loss(net, 2 * i, t).backward();
    // Backward's last gradients among them.
    for (const char* name : {"0.weight", "0.bias"}) parameter(net, name).requires_grad_(false);
    net_loss(net, 2 * i + 1, t).backward();
    for (const char* name : {"0.weight", "0.bias"}) parameter(net, name).requires_grad_(true);
  }));
}

TEST_P(TorchModules, FrozenBeforeAndThawedAfterIsRefused) {
  const Build build =
      net_with([](Module& net) { parameter(net, "0.weight").requires_grad_(false); });
  refused({"'0.weight' was frozen when the optimizer was built", "freeze it afterwards"},
          {.build = build}, [](Module& net, Trainer& t) {
            parameter(net, "0.weight").requires_grad_(true);
            plain_step(net, t, 0);
          });
}

TEST_P(TorchModules, TiedByRegistration) {
  const auto build = [] {
    torch::nn::Linear in(8, 8);
    torch::nn::Linear out(8, 4);
    return torch::nn::Sequential(in, in, out).ptr();
  };
  like_torch({.build = build}, kThreeSteps);
}

TEST_P(TorchModules, TiedByMemoryIsRefused) {
  const auto build = [] {
    torch::nn::Linear a(8, 8);
    torch::nn::Linear b(8, 8);
    torch::nn::Linear out(8, 4);
    b->weight.set_data(a->weight.data());
    return torch::nn::Sequential(a, b, out).ptr();
  };
  refused({"'0.weight'", "'1.weight'", "share memory"}, {.build = build}, kNothing);
  const auto with_buffer = [] {
    torch::nn::Linear a(8, 8);
    a->register_buffer("shadow", a->weight.detach());
    return torch::nn::Sequential(a, torch::nn::Linear(8, 4)).ptr();
  };
  refused({"'0.shadow'", "'0.weight'", "share memory"}, {.build = with_buffer}, kNothing);
}

struct FlatViews : Module {
  explicit FlatViews(int64_t shift) {
    const at::Tensor flat = at::randn({8, 12});
    a = register_parameter("a", flat.narrow(1, 0, 6).detach());
    b = register_parameter("b", flat.narrow(1, 6 - shift, 6).detach());
  }
  at::Tensor a, b;
};

TEST_P(TorchModules, ViewsOfOneMemoryThatDoNotOverlap) {
  like_torch({.build = [] { return std::make_shared<FlatViews>(0); }},
             steps(3, [](Module& net, Trainer& t, int64_t i) {
               const at::Tensor x = wave({3, 8}, i, t.dtype);
               (x.mm(net.as<FlatViews>()->a) * x.mm(net.as<FlatViews>()->b))
                   .to(at::kFloat)
                   .mean()
                   .backward();
             }));
}

TEST_P(TorchModules, ViewsThatOverlapAreRefused) {
  refused({"'a' and 'b' share memory"}, {.build = [] { return std::make_shared<FlatViews>(1); }},
          kNothing);
}

TEST_P(TorchModules, ANonLeafIsRefused) {
  const Build build = net_with(
      [](Module& net) { net.register_parameter("twice", parameter(net, "0.weight") * 2); });
  refused({"'twice' is not a leaf"}, {.build = build}, kNothing);
}

TEST_P(TorchModules, AParameterMadeInInferenceModeIsRefused) {
  const Build build = net_with([](Module& net) {
    const c10::InferenceMode inference;
    net.register_parameter("odd", at::ones({3}), /*requires_grad=*/false);
  });
  refused({"'odd' was made in InferenceMode"}, {.build = build}, kNothing);
}

TEST_P(TorchModules, ASecondOptimizerOfTheModelIsRefused) {
  refused({"belongs to an elixir optimizer already"},
          [](Module& net, Trainer&) { const AdamW second(net); });
}

struct Odd : Module {
  Odd() {
    empty = register_parameter("empty", at::zeros({0, 3}));
    scale = register_parameter("scale", at::full({}, 1.5));
    in = register_module("in", torch::nn::Linear(8, 4));
  }
  at::Tensor loss(int64_t number, at::ScalarType dtype) {
    return (in(wave({6, 8}, number, dtype)) * scale).to(at::kFloat).square().mean() +
           empty.to(at::kFloat).sum();
  }
  at::Tensor empty, scale;
  torch::nn::Linear in{nullptr};
};

TEST_P(TorchModules, ParametersWithoutElementsAndWithoutDimensions) {
  if (!fp32()) GTEST_SKIP() << "torch's run leaves the empty one in FP32";
  like_torch({.build = made<Odd>}, steps(3, [](Module& net, Trainer& t, int64_t i) {
               net.as<Odd>()->loss(i, t.dtype).backward();
             }));
}

TEST_P(TorchModules, ChannelsLastWeights) {
  const auto build = [] {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 4, 3));
    conv->weight.set_data(conv->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
    return torch::nn::Sequential(conv).ptr();
  };
  like_torch(
      {.build = build}, steps(3, [](Module& net, Trainer& t, int64_t i) {
        const at::Tensor x =
            wave({2, 4, 6, 6}, i, t.dtype).contiguous(at::MemoryFormat::ChannelsLast);
        net.as<torch::nn::SequentialImpl>()->forward(x).to(at::kFloat).square().mean().backward();
      }));
}

TEST_P(TorchModules, EpsOfZero) {
  like_torch({.hyper = {.lr = 1e-2, .eps = 0, .weight_decay = 0.05}}, kThreeSteps);
}

// ---- memory, types, devices ----

TEST_P(TorchModules, BuffersKeepTheirTypes) {
  const Build build = net_with([](Module& net) {
    net.register_buffer("angles", at::arange(64, at::kFloat) / 3);
    net.register_buffer("exact", at::arange(4, at::kDouble) / 3);
    net.register_buffer("count", at::arange(4));
  });
  like_torch({.build = build}, kThreeSteps);
}

TEST_P(TorchModules, BuffersOfAnAskedType) {
  const Build build =
      net_with([](Module& net) { net.register_buffer("angles", at::arange(4, at::kFloat)); });
  elixir_alone({.build = build, .options = {.buffer_dtype = ComputeType::kBf16}},
               [](Module& net, Trainer& t) {
                 EXPECT_EQ(net.named_buffers()["angles"].scalar_type(), at::kBFloat16);
                 t.release();
                 EXPECT_EQ(net.named_buffers()["angles"].scalar_type(), at::kFloat);
               });
}

TEST_P(TorchModules, ModuleToAfterTheOptimizerIsRefused) {
  refused({"was given other data after the optimizer was built"}, [](Module& net, Trainer& t) {
    net.to(at::kDouble);
    t.step();
  });
}

TEST_P(TorchModules, DataOfTheSameMemoryIsRefused) {
  for (const bool transposed : {false, true}) {
    refused({"'2.weight'", "was given other data after the optimizer was built"},
            [&](Module& net, Trainer& t) {
              const at::Tensor weight = parameter(net, "2.weight");
              const at::Tensor data = weight.variable_data();
              weight.set_data(transposed ? data.t() : data.narrow(0, 0, 2));
              t.step();
            });
  }
}

TEST_P(TorchModules, AWriteInPlaceIsRefused) {
  refused({"aten::mul_", "in place"}, [](Module& net, Trainer&) {
    const at::NoGradGuard no_grad;
    parameter(net, "0.weight").mul_(2);
  });
}

TEST_P(TorchModules, AnEmbeddingWithMaxNormIsRefused) {
  const auto build = [] {
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).max_norm(1.0)).ptr();
  };
  refused({"embedding_renorm_", "max_norm"}, {.build = build},
          [](Module& net, Trainer&) { net.as<torch::nn::Embedding>()->forward(at::arange(10)); });
}

TEST_P(TorchModules, PointersOfWhatIsNotGatheredAreRefused) {
  elixir_alone([](Module& net, Trainer& t) {
    const at::Tensor weight = parameter(net, "2.weight");
    EXPECT_ANY_THROW(weight.data_ptr());
    EXPECT_ANY_THROW(weight.mutable_data_ptr());
    EXPECT_ANY_THROW(weight.storage().mutable_data());
    {
      const Gathered gathered = elixir::gathered({weight});
      EXPECT_NE(weight.data_ptr(), nullptr);
    }
    // Nor of what lies in a block by chance, and may be another's a moment later.
    for (int pass = 0; pass < 2; ++pass) {
      net_output(net, pass, t);
      for (const at::Tensor& p : net.parameters()) EXPECT_ANY_THROW(p.data_ptr());
    }
  });
}

TEST_P(TorchModules, TorchSaveOfWhatIsNotGatheredIsRefused) {
  refused({"torch::save", "elixir::gathered"}, [](Module& net, Trainer&) { saved(net); });
}

TEST_P(TorchModules, TorchSaveOfCopies) {
  elixir_alone([](Module& net, Trainer& t) {
    plain_step(net, t, 0);
    std::stringstream file;
    std::vector<at::Tensor> copies, read;
    for (const auto& p : net.parameters()) copies.push_back(p.detach().clone());
    torch::save(copies, file);
    torch::load(read, file);
    for (size_t i = 0; i < read.size(); ++i) EXPECT_TRUE(at::equal(read[i], copies[i]));
  });
}

TEST_P(TorchModules, AProfilerThatLooksAtEveryTensor) {
  if (mode().ranks > 1) GTEST_SKIP() << "ranks are threads, and a process has one profiler";
  like_torch([](Module& net, Trainer& t) {
    using namespace torch::profiler::impl;
    const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true,
                                /*profile_memory=*/true);
    torch::autograd::profiler::prepareProfiler(config, {ActivityType::CPU});
    torch::autograd::profiler::enableProfiler(config, {ActivityType::CPU});
    plain_steps(0, 3, net, t);
    torch::autograd::profiler::disableProfiler();
  });
}

}  // namespace
}  // namespace elixir::test
