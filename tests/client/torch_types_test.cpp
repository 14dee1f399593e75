// Modules of torch::nn trained through Elixir with torch::optim::AdamW beside.

#include <ATen/ATen.h>
#include <torch/nn/modules.h>

#include "client/tensors/stored_type.h"
#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

TEST(StoredTypes, HaveTheNamesThatSafetensorsGiveThem) {
  for (const auto& [type, name] :
       std::initializer_list<std::pair<at::ScalarType, const char*>>{{at::kBFloat16, "BF16"},
                                                                     {at::kHalf, "F16"},
                                                                     {at::kFloat, "F32"},
                                                                     {at::kDouble, "F64"},
                                                                     {at::kBool, "BOOL"},
                                                                     {at::kByte, "U8"},
                                                                     {at::kChar, "I8"},
                                                                     {at::kUInt16, "U16"},
                                                                     {at::kShort, "I16"},
                                                                     {at::kUInt32, "U32"},
                                                                     {at::kInt, "I32"},
                                                                     {at::kUInt64, "U64"},
                                                                     {at::kLong, "I64"}}) {
    EXPECT_EQ(stored_name_of(type), name);
    EXPECT_EQ(scalar_type_of(name), type) << name;
  }
}

using torch::nn::Module;

// A module and what it makes of the input of a number.
struct Kind {
  const char* name;
  Build build;
  std::function<at::Tensor(Module&, int64_t number, at::ScalarType)> output;
  bool bf16 = true;
  double tolerance = 1e-6;
};

template <typename Holder, typename Options>
Kind one_input(const char* name, Options options, std::vector<int64_t> sizes, bool bf16 = true) {
  return {name, [options] { return Holder(options).ptr(); },
          [sizes](Module& module, int64_t number, at::ScalarType dtype) {
            return module.as<Holder>()->forward(wave(sizes, number, dtype));
          },
          bf16};
}

template <typename Holder, typename Options>
Kind recurrent(const char* name, Options options) {
  return {name, [options] { return Holder(options).ptr(); },
          [](Module& module, int64_t number, at::ScalarType dtype) {
            return std::get<0>(module.as<Holder>()->forward(wave({5, 3, 6}, number, dtype)));
          }};
}

at::Tensor words(int64_t number) { return (at::arange(12) * (number + 3) % 10).reshape({3, 4}); }

// LibTorch's kernel on the CPU wants running statistics of the input's type, FP32 here.
constexpr bool kNotInBf16 = false;

std::vector<Kind> kinds() {
  using namespace torch::nn;
  std::vector<Kind> all = {
      one_input<Linear>("Linear", LinearOptions(6, 4), {3, 6}),
      one_input<Conv1d>("Conv1d", Conv1dOptions(3, 4, 3), {2, 3, 9}),
      one_input<Conv2d>("Conv2d", Conv2dOptions(3, 4, 3).padding(1), {2, 3, 6, 6}),
      one_input<Conv3d>("Conv3d", Conv3dOptions(2, 3, 2), {2, 2, 4, 4, 4}),
      one_input<ConvTranspose2d>("ConvTranspose2d", ConvTranspose2dOptions(3, 2, 3), {2, 3, 5, 5}),
      one_input<BatchNorm1d>("BatchNorm1d", BatchNorm1dOptions(6), {8, 6}, kNotInBf16),
      one_input<BatchNorm2d>("BatchNorm2d", BatchNorm2dOptions(3), {4, 3, 5, 5}, kNotInBf16),
      one_input<LayerNorm>("LayerNorm", LayerNormOptions({6}), {3, 6}),
      one_input<GroupNorm>("GroupNorm", GroupNormOptions(2, 4), {3, 4, 5}),
      one_input<InstanceNorm2d>("InstanceNorm2d", InstanceNorm2dOptions(3).affine(true),
                                {2, 3, 5, 5}),
      one_input<PReLU>("PReLU", PReLUOptions().num_parameters(3), {2, 3, 5}),
      recurrent<RNN>("RNN", RNNOptions(6, 5).num_layers(2)),
      recurrent<LSTM>("LSTM", LSTMOptions(6, 5).num_layers(2).bidirectional(true)),
      recurrent<GRU>("GRU", GRUOptions(6, 5)),
  };
  all.push_back({"Embedding", [] { return Embedding(EmbeddingOptions(10, 6)).ptr(); },
                 [](Module& module, int64_t number, at::ScalarType) {
                   return module.as<Embedding>()->forward(words(number));
                 }});
  all.push_back({"EmbeddingBag", [] { return EmbeddingBag(EmbeddingBagOptions(10, 6)).ptr(); },
                 [](Module& module, int64_t number, at::ScalarType) {
                   return module.as<EmbeddingBag>()->forward(words(number));
                 },
                 /*bf16=*/false});
  all.push_back({"Bilinear", [] { return Bilinear(BilinearOptions(4, 5, 3)).ptr(); },
                 [](Module& module, int64_t number, at::ScalarType dtype) {
                   return module.as<Bilinear>()->forward(wave({3, 4}, number, dtype),
                                                         wave({3, 5}, number + 7, dtype));
                 }});
  // Its key bias has no gradient but rounding, which Adam makes a step of: 1e-2 of some weights.
  all.push_back(
      {"MultiheadAttention",
       [] { return MultiheadAttention(MultiheadAttentionOptions(8, 2).bias(false)).ptr(); },
       [](Module& module, int64_t number, at::ScalarType dtype) {
         const at::Tensor x = wave({5, 3, 8}, number, dtype);
         return std::get<0>(module.as<MultiheadAttention>()->forward(x, x, x));
       }});
  all.push_back(
      {"TransformerEncoderLayer",
       [] {
         return TransformerEncoderLayer(
                    TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0))
             .ptr();
       },
       [](Module& module, int64_t number, at::ScalarType dtype) {
         return module.as<TransformerEncoderLayer>()->forward(wave({5, 3, 8}, number, dtype));
       },
       true, /*tolerance=*/2e-2});
  return all;
}

class TorchTypes : public WithElixird {};

void train_kind(const Mode& mode, const Kind& kind) {
  SCOPED_TRACE(kind.name);
  Settings settings{.tolerance = kind.tolerance};
  settings.build = [&] {
    const auto module = kind.build();
    module->train();
    return module;
  };
  expect_like_torch(mode, settings, steps(3, [&](Module& module, Trainer& trainer, int64_t i) {
                      const at::Tensor y = kind.output(module, i, trainer.dtype).to(at::kFloat);
                      (y - wave(y.sizes(), i + 100)).square().mean().backward();
                    }));
}

TEST_F(TorchTypes, Modules) {
  for (const Kind& kind : kinds()) train_kind(kAlone, kind);
}

TEST_F(TorchTypes, ModulesOnTwoRanks) {
  for (const Kind& kind : kinds()) {
    train_kind(kTwoRanks, kind);
    train_kind(kTwoRanksCollective, kind);
  }
}

TEST_F(TorchTypes, ModulesInBf16) {
  for (const Kind& kind : kinds()) {
    if (kind.bf16) train_kind(kBf16Alone, kind);
  }
}

}  // namespace
}  // namespace elixir::test
