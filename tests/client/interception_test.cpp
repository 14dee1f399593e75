// Interception with a source that holds everything in memory: what is gathered when, without
// elixird.

#include "client/tensors/interception.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>

#include "tests/client/fake_source.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

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
  EXPECT_GE(views, 40u);
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

// ---- tensors that the dispatcher does not see in an operator's arguments ----

using ByName = c10::Dict<std::string, at::Tensor>;
using Tensors = c10::List<at::Tensor>;

// As a kernel of its own reads them: by their memory.
void sum_of_all(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  at::Tensor sum = at::zeros({});
  const c10::IValue value = torch::jit::pop(*stack);
  value.visit([&](const c10::IValue& element) {
    const auto add = [&](const at::Tensor& tensor) {
      const auto* const first = tensor.const_data_ptr<float>();
      for (int64_t i = 0; i < tensor.numel(); ++i) sum += first[i];
    };
    if (element.isTensor()) add(element.toTensor());
    if (element.isTensorList()) {
      for (const at::Tensor& tensor : element.toTensorVector()) add(tensor);
    }
    return element.isTensorList();
  });
  torch::jit::push(*stack, sum);
}

struct Container {
  const char* type;  // as a schema has it
  std::function<c10::IValue(const at::Tensor& a, const at::Tensor& b)> make;
};

ByName by_name(const at::Tensor& a, const at::Tensor& b) {
  ByName tensors;
  tensors.insert("a", a);
  tensors.insert("b", b);
  return tensors;
}

const Container kContainers[] = {
    {"Dict(str, Tensor)", [](auto& a, auto& b) { return by_name(a, b); }},
    {"Dict(str, Tensor)?", [](auto& a, auto& b) { return by_name(a, b); }},
    {"Dict(str, Tensor)[]",
     [](auto& a, auto& b) {
       return c10::List<ByName>({by_name(a, a.slice(0, 0, 0)), by_name(b, b.slice(0, 0, 0))});
     }},
    {"Dict(str, Tensor[])",
     [](auto& a, auto& b) {
       c10::Dict<std::string, Tensors> lists;
       lists.insert("both", Tensors({a, b}));
       return lists;
     }},
    {"Dict(str, Dict(str, Tensor))",
     [](auto& a, auto& b) {
       c10::Dict<std::string, ByName> nested;
       nested.insert("both", by_name(a, b));
       return nested;
     }},
    {"Dict(int, Tensor?)",
     [](auto& a, auto& b) {
       c10::Dict<int64_t, std::optional<at::Tensor>> some;
       some.insert(1, a);
       some.insert(2, b);
       some.insert(3, std::nullopt);
       return some;
     }},
    {"(Tensor, Tensor)", [](auto& a, auto& b) { return std::make_tuple(a, b); }},
    {"(int, (Tensor, Tensor[]))?",
     [](auto& a, auto& b) { return std::make_tuple(1, std::make_tuple(a, Tensors({b}))); }},
    {"Tensor[]?",
     [](auto& a, auto& b) {
       return Tensors({a, b});
     }},
    {"Tensor[][]",
     [](auto& a, auto& b) {
       return c10::List<Tensors>({Tensors({a}), Tensors({b})});
     }},
    {"Tensor?[]?",
     [](auto& a, auto& b) {
       return c10::List<std::optional<at::Tensor>>({a, std::nullopt, b});
     }},
    {"(Dict(str, Tensor[]), Tensor?)[]",
     [](auto& a, auto& b) {
       c10::Dict<std::string, Tensors> lists;
       lists.insert("a", Tensors({a}));
       return c10::List<std::tuple<c10::Dict<std::string, Tensors>, std::optional<at::Tensor>>>(
           {{lists, b}});
     }},
    {"Any", [](auto& a, auto& b) { return by_name(a, b); }},
    {"Any?",
     [](auto& a, auto& b) {
       return Tensors({a, b});
     }},
    {"Any[]",
     [](auto& a, auto& b) {
       return Tensors({a, b});
     }},
};

class LateLibrary {
 public:
  explicit LateLibrary(const std::string& name)
      : name_(name),
        library_(torch::Library::DEF, name, std::nullopt, __FILE__,
                 static_cast<uint32_t>(__LINE__)) {}

  c10::OperatorHandle add(const std::string& type) {
    const std::string op = "sum" + std::to_string(++operators_);
    library_.def((op + "(" + type + " value) -> Tensor").c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&sum_of_all>());
    return c10::Dispatcher::singleton().findSchemaOrThrow((name_ + "::" + op).c_str(), "");
  }

 private:
  const std::string name_;
  torch::Library library_;
  int operators_ = 0;
};

void expect_both_seen(const c10::OperatorHandle& op, const Container& of) {
  FakeSource source;
  torch::jit::Stack stack{of.make(source.view(0, {16}), source.view(1, {8}))};
  op.callBoxed(stack);
  EXPECT_EQ(source.acquired, (std::map<uint32_t, int>{{0, 1}, {1, 1}}));
  EXPECT_TRUE(source.all_released());
  const at::Tensor expected = source.plain(0, {16}).sum() + source.plain(1, {8}).sum();
  EXPECT_NEAR(stack.at(0).toTensor().item<float>(), expected.item<float>(), 1e-4);
}

// The library loads after the interception has begun, as torch.ops.load_library() may do it.
TEST(Interception, TensorsInContainersAreSeenAlsoByOperatorsThatComeLater) {
  keep_interception();
  for (int time = 0; time < 2; ++time) {  // unloaded, and loaded again
    LateLibrary library("elixir_interception_test");
    for (const Container& container : kContainers) {
      SCOPED_TRACE(container.type);
      expect_both_seen(library.add(container.type), container);
    }
  }
}

TEST(Interception, AStorageInAContainerIsRefused) {
  FakeSource source;
  LateLibrary library("elixir_interception_test_storages");
  const c10::OperatorHandle op = library.add("(int, Storage)");
  torch::jit::Stack stack{c10::ivalue::Tuple::create(1, source.view(0, {16}).storage())};
  EXPECT_THAT(thrown([&] { op.callBoxed(stack); }).message(), HasSubstr("which comes and goes"));
}

// Every operator there is, of torch's too: who can hold a parameter unseen comes by.
TEST(Interception, EveryOperatorThatTakesContainersIsIntercepted) {
  keep_interception();
  size_t with_containers = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    for (const c10::Argument& argument : op->schema().arguments()) {
      const std::string type = argument.type()->str();
      const bool holds = type.find("Storage") != std::string::npos ||
                         type.find("Dict(") != std::string::npos ||
                         type.find("Tensor[][]") != std::string::npos || type == "Tensor[]?";
      if (!holds) continue;
      ++with_containers;
      EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::BackendSelect))
          << toString(name) << " takes " << type;
    }
  }
  EXPECT_GE(with_containers, 3u);
}

TEST(Interception, AnOperatorThatCannotBeInterceptedIsNamedInTheLog) {
  keep_interception();
  torch::Library kernels(torch::Library::IMPL, "elixir_interception_test_own",
                         c10::DispatchKey::BackendSelect, __FILE__,
                         static_cast<uint32_t>(__LINE__));
  kernels.impl("sum1", torch::CppFunction::makeFromBoxedFunction<&sum_of_all>());
  LateLibrary library("elixir_interception_test_own");
  ::testing::internal::CaptureStderr();
  library.add("Dict(str, Tensor)");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("event=operator_unseen operator=\"elixir_interception_test_own::sum1\""));
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
