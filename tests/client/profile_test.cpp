// What is said of a step before it runs, against the step itself.
//   ELIXIR_EVERY_CASE=1  each model's peak with and without checkpointed regions; else one of both

#include "client/profile/profile.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>

#include "client/device/host_device.h"
#include "client/profile/counted_memory.h"
#include "client/profile/meta_kernels.h"
#include "client/regions/region_plan.h"
#include "client/tensors/activation_host.h"
#include "client/tensors/checkpoint.h"
#include "client/tensors/linear_cross_entropy.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/replace_data.h"
#include "client/train/activation_store.h"
#include "models/decoder.h"
#include "planner/kept_regions.h"
#include "tests/support/every_case.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

using planner::ModelProfile;

constexpr int64_t kBatch = 1, kSeq = 128;

struct DropGradient final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& tensor) override {
    tensor.mutable_grad().reset();
  }
};

std::shared_ptr<Decoder> model_of(const char* name, bool checkpointed) {
  return must(
      build_decoder(*planner::transformer_config(name), {.checkpoint_activations = checkpointed}));
}

// Long enough that a block's activations outweigh the gradient of the token embedding.
constexpr int64_t kTokens = 512;

// The peak of a real step, with nothing of the profile's but the count of allocations.
uint64_t real_peak_bytes(const char* name, bool checkpointed) {
  const std::shared_ptr<Decoder> model = [&] {
    const MetaInit without_memory;
    return model_of(name, checkpointed);
  }();
  for (at::Tensor& parameter : model->parameters()) {
    replace_data(parameter, at::full(parameter.sizes(), 0.01));  // quicker than random ones
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<DropGradient>());
  }
  const at::Tensor tokens = at::zeros({1, kTokens}, at::kLong);
  CountedMemory memory({c10::kCPU});
  model->loss(tokens, tokens).backward();
  return memory.count().peak_bytes();
}

ModelProfile profile_of(const char* name, bool checkpointed, ProfileOptions options,
                        int64_t seq = kSeq) {
  const MetaInit without_memory;
  const std::shared_ptr<Decoder> model = model_of(name, checkpointed);
  const at::Tensor tokens =
      at::empty({kBatch, seq}, at::TensorOptions(at::kLong).device(at::kMeta));
  options.tokens = static_cast<uint64_t>(kBatch * seq);
  return must(profile_step(
      tensors_of(*model), [&](at::Device) { return model->loss(tokens, tokens); }, options));
}

class Peak : public ::testing::TestWithParam<const char*> {};

TEST_P(Peak, IsThatOfARealStep) {
  const bool every = every_case();
  for (const bool checkpointed : {false, true}) {
    const bool is_opt = GetParam() == std::string("opt-125m");
    if (!every && checkpointed != is_opt) continue;
    const ModelProfile profile =
        profile_of(GetParam(), checkpointed, {.target = ProfileTarget::kCpu}, kTokens);
    const auto profiled = static_cast<double>(profile.activation_bytes);
    const auto real = static_cast<double>(real_peak_bytes(GetParam(), checkpointed));
    EXPECT_NEAR(profiled / real, 1, 0.01) << "checkpointed: " << checkpointed;
    std::printf("%s%s: %.0f bytes profiled, %.0f real\n", GetParam(),
                checkpointed ? ", checkpointed" : "", profiled, real);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Peak, ::testing::Values("gpt2-small", "opt-125m", "llama-100m"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::erase(name, '-');
                           return name;
                         });

constexpr uint32_t kBlocks = 10;

// Narrow, with a head that takes less than the blocks do.
planner::TransformerConfig short_config(const char* name) {
  planner::TransformerConfig config = *planner::transformer_config(name);
  config.layers = kBlocks;
  config.width = 128;
  config.heads = config.kv_heads = 4;
  config.mlp_width = 512;
  config.vocabulary = 2048;
  return config;
}

// Whatever regions keep, in a step whose second runs are known. The control is in
// tests/planner/kept_regions_test.cpp: peaks are no sums.
TEST_P(Peak, IsThatOfARealStepWhateverRegionsKeep) {
  const planner::TransformerConfig config = short_config(GetParam());
  const std::shared_ptr<Decoder> model =
      must(build_decoder(config, {.checkpoint_activations = true}));
  const at::Tensor tokens = at::zeros({1, kTokens}, at::kLong);
  const ProfileOptions options{.tokens = kTokens, .target = ProfileTarget::kCpu};
  const auto loss = [&](at::Device device) {
    const at::Tensor on_device = tokens.to(device);
    return model->loss(on_device, on_device);
  };
  const ModelProfile profile = must(profile_step(tensors_of(*model), loss, options));
  ASSERT_EQ(profile.regions.size(), kBlocks);
  for (const at::Tensor& parameter : model->parameters()) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<DropGradient>());
  }
  const auto real_peak_bytes = [&] {
    model->loss(tokens, tokens).backward();
    CountedMemory memory({c10::kCPU});
    model->loss(tokens, tokens).backward();
    return static_cast<double>(memory.count().peak_bytes());
  };
  // All choices at night: 66 for each model.
  const uint32_t every = every_case() ? 1 : 9;
  uint32_t choice = 0;
  double worst = 0;
  for (uint32_t all = 0; all <= kBlocks; ++all) {
    for (uint32_t products = 0; all + products <= kBlocks; ++products) {
      if (choice++ % every != 0) continue;
      const RegionPlan plan{.regions = kBlocks, .keep_all = all, .keep_products = products};
      set_region_plan(plan);
      const auto planned =
          static_cast<double>(planner::with_regions(profile, plan).activation_bytes);
      const double ratio = planned / real_peak_bytes();
      worst = std::max(worst, std::abs(ratio - 1));
      EXPECT_NEAR(ratio, 1, 0.01) << all << " keep all, " << products << " products";
    }
  }
  // Some are sent to host memory, which is the device's own and does not count.
  HostDevice host;
  const auto store = std::make_shared<ActivationStore>(host, uint64_t{1} << 30);
  set_activation_host(store);
  std::mt19937 random(37);
  const auto below = [&](uint32_t most) { return static_cast<uint32_t>(random() % (most + 1)); };
  double worst_if_gone = 0;
  for (int i = 0; i < (every_case() ? 200 : 12); ++i) {
    RegionPlan plan{.regions = kBlocks, .keep_all = below(kBlocks)};
    plan.host_boundaries = below(kBlocks - plan.keep_all);
    plan.keep_products = below(kBlocks - plan.keep_all);
    plan.host_products = below(plan.recompute());
    set_region_plan(plan);
    const ModelProfile sent = planner::with_regions(profile, plan);
    const double real_bytes = real_peak_bytes();
    const double ratio = static_cast<double>(sent.activation_bytes) / real_bytes;
    worst = std::max(worst, std::abs(ratio - 1));
    EXPECT_NEAR(ratio, 1, 0.01) << plan.keep_all << " keep all, " << plan.keep_products
                                << " products, " << plan.host_products << " and "
                                << plan.host_boundaries << " sent";
    // The control: as if what is on its way took no memory.
    RegionPlan gone = plan;
    gone.host_products = 0;
    const auto less = static_cast<double>(planner::with_regions(profile, gone).activation_bytes);
    worst_if_gone = std::max(worst_if_gone, 1 - less / real_bytes);
  }
  EXPECT_GT(worst_if_gone, 0.05);
  EXPECT_GT(store->traffic().up_bytes, 0U);
  store->close();
  set_activation_host(nullptr);
  set_region_plan({});
  std::printf("%s: at most %.2f %% from the real peak\n", GetParam(), 1e2 * worst);
}

// The outer region's second run is the inner one's first run again, whose products are kept. The
// inner second run computes the inner products once more.
TEST(Profile, OfNestedRegionsTheInnerProductsAreComputedAgain) {
  struct Nested : torch::nn::Module {
    Nested() : weight(register_parameter("weight", torch::ones({64, 64}))) {}
    at::Tensor weight;
  } model;
  const at::Tensor x = at::zeros({32, 64}, at::kMeta);
  const auto inner = [&](const at::Tensor& in) {
    return at::tanh(at::tanh(in.mm(model.weight)).mm(model.weight));
  };
  const auto outer = [&](const at::Tensor& in) {
    return at::tanh(checkpoint(inner, at::tanh(in.mm(model.weight))));
  };
  const auto loss = [&](at::Device) { return checkpoint(outer, x).sum(); };
  const ModelProfile profile = must(profile_step(tensors_of(model), loss, {}));
  ASSERT_EQ(profile.regions.size(), 1U);
  planner::OperatorWork kept, others;
  for (const planner::SecondRunWork& run : profile.regions[0].second_run) {
    kept.add(run.products);
    others.add(run.others);
  }
  const double product = 2.0 * 32 * 64 * 64;
  EXPECT_DOUBLE_EQ(kept.flops(), 3 * product);
  EXPECT_DOUBLE_EQ(others.flops(), 2 * product);
}

// The control: attention that keeps its scores is far off.
TEST(Profile, TellsFusedAttentionFromTheOther) {
  register_meta_kernels();
  struct Attention : torch::nn::Module {
    Attention() : weight(register_parameter("weight", torch::ones({64}))) {}
    at::Tensor weight;
  } model;
  const auto peak = [&](bool fused, at::Device device) {
    const at::Tensor x = at::zeros({1, 4, 512, 64}, at::TensorOptions(device));
    const auto loss = [&](at::Device) {
      const at::Tensor q = x * model.weight;
      return (fused ? at::scaled_dot_product_attention(q, q, q, {}, 0, true)
                    : std::get<0>(at::_scaled_dot_product_attention_math(q, q, q, {}, 0, true)))
          .sum();
    };
    const ProfileOptions options{.target = ProfileTarget::kCpu};
    if (!device.is_meta()) {
      return static_cast<double>(measure_step(tensors_of(model), loss, options).activation_bytes);
    }
    return static_cast<double>(
        must(profile_step(tensors_of(model), loss, options)).activation_bytes);
  };
  EXPECT_NEAR(peak(true, at::kMeta) / peak(true, at::kCPU), 1, 0.01);
  EXPECT_GT(peak(false, at::kMeta), 1.5 * peak(true, at::kMeta));
}

TEST(Profile, SeesGpt2sOperatorsAndTheirParameters) {
  const ModelProfile profile = profile_of("gpt2-small", false, {.model = "gpt2-small"});
  EXPECT_TRUE(planner::check_profile(profile).ok());
  EXPECT_EQ(profile.params.size(), 2u + 12 * 12 + 2);
  // C++ leaves open which operand of the embeddings' sum is computed first.
  EXPECT_TRUE(profile.params[0].name.starts_with("transformer.w"));
  EXPECT_TRUE(profile.params[1].name.starts_with("transformer.w"));
  const uint32_t wte = profile.params[0].name == "transformer.wte.weight" ? 0 : 1;
  EXPECT_EQ(profile.params[2].name, "transformer.h.0.ln_1.weight");
  EXPECT_EQ(profile.params.back().name, "transformer.ln_f.bias");
  for (size_t i = 0; i < profile.params.size(); ++i) {
    EXPECT_EQ(profile.params[i].shared, i == wte) << profile.params[i].name;
    EXPECT_FALSE(profile.params[i].frozen);
    EXPECT_GE(profile.gradient_after[i], profile.backward_begin);
  }
  // Two embeddings, per block four products and two norms, a norm, the output.
  ASSERT_EQ(profile.backward_begin, 2u + 12 * 6 + 2);
  EXPECT_THAT(profile.steps[0], ElementsAre(0));
  EXPECT_THAT(profile.steps[1], ElementsAre(1));
  EXPECT_THAT(profile.steps[2], ElementsAre(2, 3));
  EXPECT_THAT(profile.steps[profile.backward_begin - 1], ElementsAre(wte));
  EXPECT_THAT(profile.steps[profile.backward_begin], ElementsAre(wte));
  EXPECT_EQ(profile.gradient_after[wte], profile.steps.size() - 1);  // its other use comes last
  EXPECT_TRUE(profile.checkpoint_regions.empty());
  EXPECT_EQ(profile.tokens, static_cast<uint64_t>(kBatch * kSeq));
  EXPECT_EQ(profile.dtype_bytes(), 4u);
  // tokens, and the same as targets
  EXPECT_EQ(profile.buffer_bytes, MemoryCount::rounded(kBatch * kSeq * 8));
  EXPECT_EQ(*std::max_element(profile.activation_curve.begin(), profile.activation_curve.end()),
            profile.activation_bytes);
}

// A slice's rows of the head are widened to FP32 on the CPU. CUDA multiplies 16-bit values into
// FP32.
TEST(Profile, ForCudaTheLossTakesCudasWay) {
  constexpr int64_t kRows = 1024, kWidth = 768;
  struct Head : torch::nn::Module {
    Head() : weight(register_parameter("weight", torch::zeros({4 * kRows, kWidth}))) {}
    at::Tensor weight;
  } model;
  const auto loss = [&](at::Device device) {
    const at::TensorOptions options(device);
    const at::Tensor hidden = at::zeros({16, kWidth}, options.dtype(at::kBFloat16));
    return linear_cross_entropy(hidden.requires_grad_(), model.weight,
                                at::zeros({16}, options.dtype(at::kLong)), kRows);
  };
  const auto bytes = [&](ProfileTarget target) {
    const Result<ModelProfile> profile =
        profile_step(tensors_of(model), loss, {.dtype = ComputeType::kBf16, .target = target});
    EXPECT_TRUE(profile.ok()) << profile.status().message();
    return static_cast<double>(profile->activation_bytes);
  };
  constexpr double kWidened = kRows * kWidth * sizeof(float);
  EXPECT_NEAR(bytes(ProfileTarget::kCpu) - bytes(ProfileTarget::kCuda), kWidened, kWidened / 10);
}

// 6 for each parameter of a product and token (the tied embedding has one in the output alone), and
// attention's 2 + 5 products over the whole square.
TEST(Profile, CountsTheOperationsOfMatrixProducts) {
  const ModelProfile profile = profile_of("gpt2-small", false, {});
  double expected = 0;
  for (const planner::ProfiledParameter& parameter : profile.params) {
    const bool multiplied = parameter.name.ends_with("weight") &&
                            parameter.name.find("ln_") == std::string::npos &&
                            parameter.name.find("wpe") == std::string::npos;
    if (multiplied) expected += 6.0 * static_cast<double>(parameter.numel) * kBatch * kSeq;
  }
  expected += 12 * 7 * 2.0 * kBatch * kSeq * kSeq * 768;
  double counted = 0;
  for (const double flops : profile.step_flops) counted += flops;
  EXPECT_DOUBLE_EQ(counted, expected);
}

// Each operator's own share is what a weight of one element adds to a profile that has it already.
struct Operators : torch::nn::Module {
  Operators() : weight(register_parameter("weight", torch::ones({1}))) {}
  at::Tensor weight;
};

// `forward` runs without gradients, so its work is counted once.
planner::OperatorWork work_of(const std::function<void(at::Device)>& forward) {
  Operators model;
  const auto total = [&](bool with) {
    const auto loss = [&](at::Device device) {
      at::Tensor value = model.weight.sum();
      if (with) {
        const at::NoGradGuard no_grad;
        forward(device);
      }
      return value;
    };
    const ModelProfile profile = must(profile_step(tensors_of(model), loss, {}));
    planner::OperatorWork all;
    for (const planner::OperatorWork& work : profile.step_work) all.add(work);
    return all;
  };
  planner::OperatorWork with = total(true);
  const planner::OperatorWork without = total(false);
  with.bytes -= without.bytes;
  with.kernels -= without.kernels;
  return with;
}

TEST(OperatorWork, BytesAreThoseReadAndWritten) {
  const auto of = [](at::Device device, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
    return at::empty(sizes, at::TensorOptions(type).device(device));  // chooses memory alone
  };
  struct Case {
    const char* what;
    std::function<void(at::Device)> run;
    double bytes;
    uint32_t kernels;
  };
  const Case cases[] = {
      {"a sum",
       [&](at::Device d) {
         of(d, {64, 8}) + of(d, {64, 8});
       },
       3 * 512 * 4, 1},
      {"an expanded operand",
       [&](at::Device d) {
         of(d, {64, 8}) + of(d, {8});
       },
       (2 * 512 + 8) * 4, 1},
      {"in place",
       [&](at::Device d) {
         of(d, {64, 8}).exp_();
       },
       2 * 512 * 4, 1},
      {"in place over what was there",
       [&](at::Device d) {
         of(d, {64, 8}).zero_();
       },
       512 * 4, 1},
      {"another type",
       [&](at::Device d) {
         of(d, {64, 8}).to(at::kBFloat16);
       },
       512 * (4 + 2), 1},
      {"views",
       [&](at::Device d) {
         of(d, {64, 8}).view({-1, 4}).t().select(0, 1).detach();
       },
       0, 0},
      {"memory alone",
       [&](at::Device d) {
         at::empty_like(of(d, {64, 8}));
       },
       0, 0},
      {"new values",
       [&](at::Device d) {
         at::zeros({64, 8}, at::TensorOptions(d));
       },
       512 * 4, 1},
      {"rows of a table",
       [&](at::Device d) {
         at::embedding(of(d, {1000, 8}), of(d, {5}, at::kLong));
       },
       5 * 8 + 2 * 5 * 8 * 4, 1},
      {"chosen rows",
       [&](at::Device d) {
         at::index_select(of(d, {1000, 8}), 0, of(d, {5}, at::kLong));
       },
       5 * 8 + 2 * 5 * 8 * 4, 1},
      {"elements of rows",
       [&](at::Device d) {
         at::gather(of(d, {1000, 8}), 1, of(d, {1000, 1}, at::kLong));
       },
       1000 * 8 + 2 * 1000 * 4, 1},
      {"chosen elements written",
       [&](at::Device d) {
         of(d, {1000, 8}).scatter_(1, of(d, {1000, 1}, at::kLong), of(d, {1000, 1}));
       },
       1000 * (8 + 4 + 4), 1},
      {"chosen rows added to",
       [&](at::Device d) {
         of(d, {1000, 8}).index_add_(0, of(d, {5}, at::kLong), of(d, {5, 8}));
       },
       5 * 8 + 3 * 5 * 8 * 4, 1},
      {"several results",
       [&](at::Device d) {
         at::native_layer_norm(of(d, {64, 8}), {8}, {}, {}, 1e-5);
       },
       (2 * 512 + 2 * 64) * 4, 1},
      {"into given memory",
       [&](at::Device d) {
         at::Tensor out = of(d, {64, 8});
         at::add_out(out, of(d, {64, 8}), of(d, {64, 8}));
       },
       3 * 512 * 4, 1},
      {"a product",
       [&](at::Device d) {
         at::mm(of(d, {64, 8}), of(d, {8, 16}));
       },
       0, 1}};
  for (const Case& each : cases) {
    const planner::OperatorWork work = work_of(each.run);
    EXPECT_EQ(work.bytes, each.bytes) << each.what;
    EXPECT_EQ(work.kernels, each.kernels) << each.what;
  }
}

TEST(OperatorWork, ProductsHaveTheirShapes) {
  const auto of = [](at::Device device, at::IntArrayRef sizes) {
    return at::empty(sizes, at::TensorOptions(device));
  };
  const auto shape_of = [](const std::function<void(at::Device)>& run) {
    const std::vector<planner::MatrixProduct> products = work_of(run).products;
    if (products.size() != 1) return std::vector<uint64_t>();
    const planner::MatrixProduct& p = products[0];
    return std::vector<uint64_t>{p.count, p.rows, p.columns, p.inner};
  };
  EXPECT_THAT(shape_of([&](at::Device d) {
                at::mm(of(d, {6, 8}), of(d, {8, 16}));
              }),
              ElementsAre(1, 6, 16, 8));
  EXPECT_THAT(shape_of([&](at::Device d) {
                at::bmm(of(d, {3, 6, 8}), of(d, {3, 8, 16}));
              }),
              ElementsAre(3, 6, 16, 8));
  EXPECT_THAT(shape_of([&](at::Device d) {
                at::addmm(of(d, {16}), of(d, {6, 8}), of(d, {8, 16}));
              }),
              ElementsAre(1, 6, 16, 8));
  const planner::OperatorWork attention = work_of([&](at::Device d) {
    const at::Tensor q = of(d, {2, 4, 32, 16});
    at::_scaled_dot_product_flash_attention_for_cpu(q, q, q);
  });
  EXPECT_EQ(attention.attention_flops, 2 * 2.0 * (2 * 4 * 32 * 16) * 32);
  EXPECT_TRUE(attention.products.empty());
}

TEST(Profile, ProductsAndAttentionAreAllOperations) {
  const ModelProfile profile = profile_of("gpt2-small", true, {});
  uint32_t attends = 0;
  for (size_t i = 0; i < profile.steps.size(); ++i) {
    const planner::OperatorWork& work = profile.step_work[i];
    EXPECT_EQ(work.flops(), profile.step_flops[i]) << i;
    EXPECT_EQ(work.attention_head, work.attention_flops > 0 ? 64u : 0) << i;
    attends += work.attention_flops > 0 ? 1 : 0;
  }
  EXPECT_EQ(attends, 3u * 12);  // forward, again in backward, and backward's own
}

TEST(Profile, NamesCheckpointedRegions) {
  const ModelProfile profile = profile_of("gpt2-small", true, {});
  ASSERT_EQ(profile.checkpoint_regions.size(), 24u);
  for (uint32_t i = 0; i < 24; ++i) {
    const planner::OperatorRange region = profile.checkpoint_regions[i];
    EXPECT_EQ(region.first >= profile.backward_begin, i >= 12);
    // Backward's: the six of forward again, then two norms' and four products' gradients.
    EXPECT_EQ(region.last - region.first + 1, i < 12 ? 6u : 12u);
    std::set<uint32_t> used;
    for (uint32_t step = region.first; step <= region.last; ++step) {
      used.insert(profile.steps[step].begin(), profile.steps[step].end());
    }
    EXPECT_EQ(used.size(), 12u);  // one block's parameters
  }
  EXPECT_LT(profile_of("llama-100m", true, {}, 512).activation_bytes,
            profile_of("llama-100m", false, {}, 512).activation_bytes / 2);
}

TEST(Profile, LeavesTheModuleAsItWas) {
  const std::shared_ptr<Decoder> model = model_of("gpt2-nano", true);
  const at::Tensor weight = model->parameters()[0];
  const at::Tensor before = weight.clone();
  weight.mutable_grad() = at::ones_like(before);
  const auto loss = [&](at::Device device) {
    const at::Tensor tokens = at::zeros({2, 16}, at::TensorOptions(at::kLong).device(device));
    return model->loss(tokens, tokens);
  };
  const ProfileOptions bf16{.dtype = ComputeType::kBf16};
  ASSERT_TRUE(profile_step(tensors_of(*model), loss, bf16).ok());
  EXPECT_TRUE(weight.equal(before));
  EXPECT_TRUE(weight.grad().equal(at::ones_like(before)));
  loss(at::kCPU).backward();
  EXPECT_FALSE(weight.grad().equal(at::ones_like(before)));  // added to, as without a profile
}

// A module with an operator whose result's size is its data.
struct Unknown : torch::nn::Module {
  Unknown() : weight(register_parameter("weight", torch::ones({8}))) {}
  at::Tensor loss(at::Device device) {
    const at::Tensor x = at::ones({8}, at::TensorOptions(device)) * weight;
    return at::masked_select(x, x > 0).sum();
  }
  at::Tensor weight;
};

TEST(Profile, NamesAnOperatorThatHasNoMetaKernelAndMeasuresAStepInstead) {
  Unknown model;
  const auto loss = [&](at::Device device) { return model.loss(device); };
  EXPECT_THAT(profile_step(tensors_of(model), loss, {}).status().message(),
              HasSubstr("masked_select"));
  const ModelProfile measured = profile_or_measure(tensors_of(model), loss, {});
  EXPECT_TRUE(measured.measured);
  EXPECT_EQ(measured.params[0].name, "weight");
  EXPECT_GT(measured.activation_bytes, 0u);
  EXPECT_FALSE(profile_of("gpt2-small", false, {}).measured);
}

// LibTorch's own libraries take memory by raw_allocate(), whose context is the address.
TEST(Profile, AMeasuredStepMayTakeRawMemory) {
  struct Net : torch::nn::Module {
    Net() : weight(register_parameter("weight", torch::ones({64, 512}))) {}
    at::Tensor weight;
  } model;
  const auto loss = [&](at::Device device) {
    const at::Tensor x = at::ones({256, 64}, at::TensorOptions(device));
    return at::gelu(x.mm(model.weight)).sum();
  };
  const ModelProfile measured = measure_step(tensors_of(model), loss, {});
  EXPECT_GE(measured.activation_bytes, 2 * 256 * 512 * sizeof(float));
  {
    CountedMemory memory({c10::kCPU});
    void* const within = c10::GetAllocator(c10::kCPU)->raw_allocate(5000);
    EXPECT_EQ(memory.count().current_bytes(), 5120u);
    c10::GetAllocator(c10::kCPU)->raw_deallocate(within);
    EXPECT_EQ(memory.count().current_bytes(), 0u);
  }
}

TEST(Profile, AMeasuredStepReadsTheSameParameters) {
  const std::shared_ptr<Decoder> model = model_of("gpt2-nano", true);
  // Made before: how many kernels that takes is torch's to choose.
  const at::Tensor on_cpu = at::zeros({2, 128}, at::kLong), on_meta = on_cpu.to(at::kMeta);
  const auto loss = [&](at::Device device) {
    const at::Tensor& tokens = device.is_meta() ? on_meta : on_cpu;
    return model->loss(tokens, tokens);
  };
  const ProfileOptions options{.target = ProfileTarget::kCpu};
  const ModelProfile profiled = *profile_step(tensors_of(*model), loss, options);
  const ModelProfile measured = measure_step(tensors_of(*model), loss, options);
  EXPECT_EQ(profiled.steps, measured.steps);
  EXPECT_EQ(profiled.step_flops, measured.step_flops);
  // On a device, the loss also looks at its targets, before its product.
  for (size_t i = 0; i < profiled.steps.size(); ++i) {
    const planner::OperatorWork &meta = profiled.step_work[i], &cpu = measured.step_work[i];
    const bool looks = i + 2 == profiled.backward_begin;
    EXPECT_NEAR(meta.bytes, cpu.bytes, looks ? 20'000 : 0) << i;
    EXPECT_NEAR(meta.kernels, cpu.kernels, looks ? 8 : 0) << i;
    EXPECT_EQ(meta.attention_flops, cpu.attention_flops) << i;
    EXPECT_EQ(meta.products.size(), cpu.products.size()) << i;
  }
  EXPECT_EQ(profiled.gradient_after, measured.gradient_after);
  EXPECT_NEAR(static_cast<double>(profiled.activation_bytes) /
                  static_cast<double>(measured.activation_bytes),
              1, 0.01);
  // Everywhere in the step, not only at its peak.
  for (size_t i = 0; i < profiled.steps.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(profiled.activation_curve[i]),
                static_cast<double>(measured.activation_curve[i]),
                0.01 * static_cast<double>(measured.activation_bytes))
        << "operator " << i;
  }
}

}  // namespace
}  // namespace elixir
