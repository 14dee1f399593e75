// Interception with a source that holds everything in memory: what is gathered when, without
// elixird.

#include "client/tensors/interception.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <sstream>

#include "client/tensors/chunk_storage.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

constexpr int64_t kChunkNumel = 256;

// Two chunks of FP32, each placed only while an operator holds it.
class FakeSource final : public ChunkSource {
 public:
  FakeSource() : binding_(std::make_shared<ChunkBinding>()) {
    keep_interception();
    binding_->begin(this);
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      bytes_[chunk] = at::randn({kChunkNumel});
      storages_[chunk] = c10::make_intrusive<ChunkStorage>(
          binding_, chunk, kChunkNumel * sizeof(float), c10::Device(c10::kCPU));
    }
  }
  ~FakeSource() override { binding_->end(); }

  void acquire(std::span<const uint32_t> chunks, const char* name) override {
    last_operator = name;
    for (uint32_t chunk : chunks) {
      if (pins_[chunk]++ == 0) storages_[chunk]->place(bytes_[chunk].data_ptr());
      ++acquired[chunk];
    }
  }
  void release(std::span<const uint32_t> chunks) noexcept override {
    for (uint32_t chunk : chunks) {
      if (--pins_[chunk] == 0) storages_[chunk]->place(nullptr);
    }
  }

  at::Tensor view(uint32_t chunk, at::IntArrayRef sizes) {
    return chunk_view(storages_[chunk], at::kFloat, 0, sizes);
  }
  at::Tensor plain(uint32_t chunk, at::IntArrayRef sizes) {
    int64_t numel = 1;
    for (int64_t size : sizes) numel *= size;
    return bytes_[chunk].narrow(0, 0, numel).view(sizes).clone();
  }
  bool all_released() const { return pins_[0] == 0 && pins_[1] == 0; }

  std::map<uint32_t, int> acquired;
  std::string last_operator;

 private:
  std::shared_ptr<ChunkBinding> binding_;
  at::Tensor bytes_[2];
  c10::intrusive_ptr<ChunkStorage> storages_[2];
  int pins_[2] = {0, 0};
};

// Making a view costs what it costs without Elixir; what reads one is intercepted.
TEST(Interception, TorchsViewsPassBy) {
  FakeSource source;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const auto passes = [](const c10::OperatorHandle& op) {
    return op.hasKernelForDispatchKey(kChunkKey) && op.isKernelFallthroughKernel(kChunkKey);
  };
  size_t views = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    views += op && passes(*op) ? 1 : 0;
  }
  EXPECT_GE(views, 100u);
  EXPECT_TRUE(passes(dispatcher.findSchemaOrThrow("aten::t", "")));
  EXPECT_TRUE(passes(dispatcher.findSchemaOrThrow("aten::view", "")));
  EXPECT_FALSE(passes(dispatcher.findSchemaOrThrow("aten::add", "Tensor")));
  EXPECT_FALSE(passes(dispatcher.findSchemaOrThrow("aten::add_", "Tensor")));
  const at::Tensor turned = source.view(0, {16, 8}).t().narrow(0, 2, 3).unsqueeze(0);
  EXPECT_TRUE(source.acquired.empty());
  EXPECT_TRUE(at::equal(turned, source.plain(0, {16, 8}).t().narrow(0, 2, 3).unsqueeze(0)));
  EXPECT_GT(source.acquired[0], 0);
}

TEST(Interception, ForwardAndBackwardOfALinearLayerEqualPlainTorch) {
  FakeSource source;
  const at::Tensor input = at::randn({3, 8});
  at::Tensor weight = source.view(0, {16, 8}).requires_grad_();
  at::Tensor bias = source.view(1, {16}).requires_grad_();
  at::Tensor plain_weight = source.plain(0, {16, 8}).requires_grad_();
  at::Tensor plain_bias = source.plain(1, {16}).requires_grad_();
  at::Tensor x = input.clone().requires_grad_(), plain_x = input.clone().requires_grad_();

  at::Tensor out = at::linear(x, weight, bias);
  at::Tensor plain = at::linear(plain_x, plain_weight, plain_bias);
  EXPECT_TRUE(at::equal(out, plain));
  out.pow(2).sum().backward();
  plain.pow(2).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), plain_weight.grad()));
  EXPECT_TRUE(at::equal(bias.grad(), plain_bias.grad()));
  EXPECT_TRUE(at::equal(x.grad(), plain_x.grad()));
  EXPECT_EQ(source.acquired[0], 2);  // addmm, and mm(grad, weight.t()) in backward; no view
  EXPECT_GE(source.acquired[1], 1);  // addmm, and again inside it, where the pin nests
  EXPECT_TRUE(source.all_released());
}

TEST(Interception, ViewsGatherNothing) {
  FakeSource source;
  const at::Tensor weight = source.view(0, {16, 8});
  weight.t().slice(0, 1, 3).unsqueeze(0).detach();
  EXPECT_TRUE(source.acquired.empty());
}

TEST(Interception, PrintingCloningAndItemWork) {
  FakeSource source;
  const at::Tensor weight = source.view(0, {2, 2}), plain = source.plain(0, {2, 2});
  EXPECT_TRUE(at::equal(weight.clone(), plain));
  EXPECT_EQ(weight.sum().item<float>(), plain.sum().item<float>());
  EXPECT_EQ(weight[1][1].item<float>(), plain[1][1].item<float>());
  std::ostringstream printed, expected;
  printed << weight;
  expected << plain;
  EXPECT_EQ(printed.str(), expected.str());
  EXPECT_TRUE(source.all_released());
}

TEST(Interception, ListsOfTensorsAreSeen) {
  FakeSource source;
  const at::Tensor both = at::cat({source.view(0, {4}), source.view(1, {4})});
  EXPECT_TRUE(at::equal(both, at::cat({source.plain(0, {4}), source.plain(1, {4})})));
  EXPECT_EQ(source.acquired[0], 1);
  EXPECT_EQ(source.acquired[1], 1);
}

TEST(Interception, ChunksAreReleasedWhenAnOperatorThrows) {
  FakeSource source;
  const at::Tensor weight = source.view(0, {16, 8});
  EXPECT_ANY_THROW(at::mm(weight, at::randn({3, 3})));
  EXPECT_EQ(source.acquired[0], 1);
  EXPECT_TRUE(source.all_released());
}

TEST(Interception, ARawPointerIsRefusedByLibTorchWhileNotGathered) {
  FakeSource source;
  const at::Tensor weight = source.view(0, {16, 8});
  EXPECT_ANY_THROW(weight.data_ptr<float>());
  const uint32_t chunk = 0;
  source.acquire(std::span(&chunk, 1), "test");
  EXPECT_EQ(weight.data_ptr<float>()[0], source.plain(0, {1})[0].item<float>());
  source.release(std::span(&chunk, 1));
}

TEST(Interception, WritingAParameterInPlaceIsRefused) {
  FakeSource source;
  at::Tensor weight = source.view(0, {4});
  expect_thrown(Code::kInvalidArgument, {"aten::mul_"}, [&] { weight.mul_(2); });
}

// As a program's own: tensors that the dispatcher does not see in its arguments.
at::Tensor sum_of_dict(const c10::Dict<std::string, at::Tensor>& tensors) {
  at::Tensor sum = at::zeros({});
  for (const auto& entry : tensors) {
    const at::Tensor& values = entry.value();
    const auto* const first = values.const_data_ptr<float>();  // as a kernel of its own reads them
    for (int64_t i = 0; i < values.numel(); ++i) sum += first[i];
  }
  return sum;
}

TEST(Interception, TensorsInDictionariesAreSeen) {
  static torch::Library library(torch::Library::DEF, "elixir_interception_test", std::nullopt,
                                __FILE__, static_cast<uint32_t>(__LINE__));
  library.def("sum_of_dict(Dict(str, Tensor) tensors) -> Tensor", &sum_of_dict);
  FakeSource source;  // after the library, whose operators keep_interception() finds
  c10::Dict<std::string, at::Tensor> tensors;
  tensors.insert("a", source.view(0, {16}));
  tensors.insert("b", source.view(1, {8}));
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("elixir_interception_test::sum_of_dict", "");
  const at::Tensor sum =
      op.typed<at::Tensor(const c10::Dict<std::string, at::Tensor>&)>().call(tensors);
  EXPECT_EQ(source.acquired, (std::map<uint32_t, int>{{0, 1}, {1, 1}}));
  EXPECT_TRUE(source.all_released());
  const at::Tensor expected = source.plain(0, {16}).sum() + source.plain(1, {8}).sum();
  EXPECT_NEAR(sum.item<float>(), expected.item<float>(), 1e-4);
}

TEST(Interception, ATensorIsNotSetToTheMemoryOfParameters) {
  FakeSource source;
  const at::Tensor view = source.view(0, {16});
  at::Tensor other = at::zeros({4});
  const at::Storage storage = view.storage();
  for (const bool sizes : {false, true}) {
    const Status refused = thrown([&] {
      if (sizes) {
        other.set_(storage, 2, {4}, {1});
      } else {
        other.set_(storage);
      }
    });
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("which comes and goes"));
  }
  EXPECT_THAT(thrown([&] { other.set_(view); }).message(), HasSubstr("which comes and goes"));
  const at::Tensor plain = at::ones({8});
  other.set_(plain.storage(), 2, {4}, {1});  // of ordinary tensors as ever
  EXPECT_EQ(other.sum().item<float>(), 4);
}

// As torch does it: each optimizer brings its own.
TEST(Interception, OneOperatorMayReadParametersOfTwoSources) {
  FakeSource left, right;
  const at::Tensor sum = left.view(0, {16}) + right.view(1, {16});
  EXPECT_TRUE(at::equal(sum, left.plain(0, {16}) + right.plain(1, {16})));
  EXPECT_EQ(left.acquired, (std::map<uint32_t, int>{{0, 1}}));
  EXPECT_EQ(right.acquired, (std::map<uint32_t, int>{{1, 1}}));
  EXPECT_TRUE(left.all_released() && right.all_released());
  at::Tensor small = right.view(0, {3});
  EXPECT_THROW(at::mm(left.view(0, {16, 8}), small), c10::Error);
  EXPECT_TRUE(left.all_released() && right.all_released());
}

TEST(Interception, AParameterThatOutlivesItsSourceSaysSo) {
  at::Tensor weight;
  {
    FakeSource source;
    weight = source.view(0, {4});
  }
  EXPECT_THAT(thrown([&] { weight.sum(); }).message(), HasSubstr("keep the optimizer alive"));
}

}  // namespace
}  // namespace elixir
