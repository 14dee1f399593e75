#include "models/rotation.h"

#include <ATen/Functions.h>

#include <vector>

#include "tests/support/matchers.h"

namespace elixir {
namespace {

using planner::Rotary;
using planner::RotaryKind;

struct Case {
  Rotary rotary;
  std::vector<float> cosines, sines;  // of transformers 5.23, at position 37 of 48, heads of 16
};

const Case kCases[] = {
    {{.base = 500},
     {0.765414f, -0.260770f, 0.029431f, -0.897544f, -0.083796f, 0.724194f, 0.939399f, 0.987081f},
     {-0.643538f, -0.965401f, 0.999567f, -0.440926f, 0.996483f, 0.689596f, 0.342827f, 0.160224f}},
    {{.kind = RotaryKind::kLinear, .base = 500, .factor = 4},
     {-0.984765f, -0.442742f, -0.375875f, 0.621958f, 0.915651f, 0.981960f, 0.996176f, 0.999191f},
     {0.173889f, -0.896649f, 0.926671f, 0.783051f, 0.401975f, 0.189088f, 0.087370f, 0.040218f}},
    {{.kind = RotaryKind::kDynamic, .base = 500, .factor = 4, .original_context = 16},
     {0.765414f, 0.990867f, -0.510556f, 0.166790f, 0.890911f, 0.987482f, 0.998584f, 0.999840f},
     {-0.643538f, -0.134843f, -0.859845f, 0.985992f, 0.454178f, 0.157734f, 0.053192f, 0.017879f}},
    {{.kind = RotaryKind::kLlama3,
      .base = 500,
      .factor = 8,
      .original_context = 64,
      .low_freq_factor = 1,
      .high_freq_factor = 4},
     {0.765414f, -0.260770f, -0.891467f, 0.900544f, 0.978685f, 0.995480f, 0.999044f, 0.999798f},
     {-0.643538f, -0.965401f, -0.453085f, 0.434765f, 0.205365f, 0.094973f, 0.043727f, 0.020113f}},
    {{.kind = RotaryKind::kYarn,
      .base = 500,
      .factor = 4,
      .original_context = 64,
      .beta_fast = 8,
      .beta_slow = 1,
      .magnitude = 1.25},
     {0.956768f, 1.226350f, -0.896796f, 0.777448f, 1.144563f, 1.227450f, 1.245220f, 1.248989f},
     {-0.804423f, 0.242006f, -0.870780f, 0.978813f, 0.502469f, 0.236359f, 0.109212f, 0.050273f}},
    {{.kind = RotaryKind::kYarn,
      .base = 500,
      .factor = 4,
      .original_context = 64,
      .beta_fast = 8,
      .beta_slow = 1,
      .magnitude = 1.138629,
      .truncate = false},
     {0.871523f, 0.450777f, -0.634147f, 0.708180f, 1.042587f, 1.118089f, 1.134275f, 1.137708f},
     {-0.732751f, 1.045599f, -0.945692f, 0.891604f, 0.457700f, 0.215301f, 0.099482f, 0.045794f}},
};

TEST(Rotation, TurnsAsTransformersDoes) {
  for (const Case& one : kCases) {
    const Rotation rotation(one.rotary, 48, 16, at::TensorOptions());
    for (const auto& [ours, theirs] :
         {std::pair(rotation.cosines, one.cosines), std::pair(rotation.sines, one.sines)}) {
      ASSERT_EQ(ours.sizes(), at::IntArrayRef({48, 16}));
      for (int64_t i = 0; i < 16; ++i) {
        EXPECT_NEAR(ours[37][i].item<float>(), theirs[static_cast<size_t>(i % 8)], 2e-5)
            << static_cast<int>(one.rotary.kind) << ", frequency " << i;
      }
    }
  }
}

TEST(Rotation, DynamicScalingBeginsBehindTheOriginalContext) {
  const Rotary own{.base = 500};
  const Rotary dynamic{
      .kind = RotaryKind::kDynamic, .base = 500, .factor = 4, .original_context = 16};
  const auto cosines = [](const Rotary& rotary, int64_t seq) {
    return Rotation(rotary, seq, 16, at::TensorOptions()).cosines;
  };
  EXPECT_TRUE(cosines(dynamic, 16).equal(cosines(own, 16)));
  EXPECT_FALSE(cosines(dynamic, 17).equal(cosines(own, 17)));
}

TEST(Rotation, AnglesAreFp32WhateverTheType) {
  const Rotary rotary{};
  const at::Tensor fp32 = Rotation(rotary, 4096, 16, at::TensorOptions()).cosines;
  const at::Tensor bf16 = Rotation(rotary, 4096, 16, at::TensorOptions(at::kBFloat16)).cosines;
  EXPECT_EQ(bf16.scalar_type(), at::kBFloat16);
  EXPECT_LT((bf16.to(at::kFloat) - fp32).abs().max().item<double>(), 4e-3);
}

}  // namespace
}  // namespace elixir
