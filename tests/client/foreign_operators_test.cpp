// Operators of other libraries on tensors in chunks: they are intercepted, and the kernel runs that
// runs for ordinary tensors. Which kernel that is, each of this file's kernels says.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <string>

#include "tests/client/fake_source.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

using c10::DispatchKey;

thread_local std::string ran;  // the kernels of this file's operators, one after the other

// Reads memory as a kernel does: by its address.
at::Tensor sum_by_address(const at::Tensor& tensor) {
  float sum = 0;
  const auto* const first = tensor.const_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) sum += first[i];
  return at::full({}, sum);
}

template <char kName>
at::Tensor kernel(const at::Tensor& tensor) {
  ran += kName;
  return tensor.is_meta() ? at::empty({}, tensor.options()) : sum_by_address(tensor);
}

// For an operator of two tensors, of which one may have another layout.
at::Tensor sparse_kernel(const at::Tensor& sparse, const at::Tensor& tensor) {
  ran += 's';
  return sum_by_address(tensor) + sparse._values().sum();
}

struct Kernels {
  const char* name;
  std::initializer_list<std::pair<DispatchKey, at::Tensor (*)(const at::Tensor&)>> kernels;
};

// The ways in which libraries register kernels. The first is bitsandbytes': a slow kernel for all
// devices, and one for each device.
const Kernels kWays[] = {
    {"default_and_cpu",
     {{DispatchKey::CompositeExplicitAutograd, kernel<'d'>}, {DispatchKey::CPU, kernel<'c'>}}},
    {"cpu_and_default",
     {{DispatchKey::CPU, kernel<'c'>}, {DispatchKey::CompositeExplicitAutograd, kernel<'d'>}}},
    {"cpu", {{DispatchKey::CPU, kernel<'c'>}}},
    {"cpu_and_meta", {{DispatchKey::CPU, kernel<'c'>}, {DispatchKey::Meta, kernel<'m'>}}},
    {"default_alone", {{DispatchKey::CompositeExplicitAutograd, kernel<'d'>}}},
    {"non_functional",
     {{DispatchKey::CompositeExplicitAutogradNonFunctional, kernel<'n'>},
      {DispatchKey::CPU, kernel<'c'>}}},
};

// The library, with all operators. Defined before main(), so before Elixir looks, or in a test.
void define(torch::Library& library) {
  for (const Kernels& way : kWays) {
    library.def((std::string(way.name) + "(Tensor value) -> Tensor").c_str());
    for (const auto& [key, function] : way.kernels) {
      library.impl(way.name, torch::dispatch(key, torch::CppFunction(function)));
    }
  }
  library.def("with_sparse(Tensor sparse, Tensor value) -> Tensor");
}

TORCH_LIBRARY(elixir_foreign_early, library) {
  define(library);
  library.impl("with_sparse", torch::dispatch(DispatchKey::SparseCPU, sparse_kernel));
}

class Library {
 public:
  explicit Library(bool early) : name_(early ? "elixir_foreign_early" : "elixir_foreign_late") {
    keep_interception();
    if (early) return;
    late_.emplace(torch::Library::DEF, name_, std::nullopt, __FILE__,
                  static_cast<uint32_t>(__LINE__));
    define(*late_);
  }

  c10::OperatorHandle find(const char* op) const {
    return c10::Dispatcher::singleton().findSchemaOrThrow((name_ + "::" + op).c_str(), "");
  }
  // The kernels that run.
  std::string run(const char* op, const at::Tensor& tensor) const {
    ran.clear();
    find(op).typed<at::Tensor(const at::Tensor&)>().call(tensor);
    return ran;
  }

 private:
  const std::string name_;
  std::optional<torch::Library> late_;
};

class ForeignOperators : public ::testing::TestWithParam<bool> {
 protected:
  const Library library_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Loaded, ForeignOperators, ::testing::Bool(), [](const auto& info) {
  return info.param ? "BeforeElixir" : "AfterElixir";
});

enum class Mode { kGrad, kNoGrad, kInference };

// Runs it in one of the modes in which a program may be.
void in_mode(Mode mode, const std::function<void()>& program) {
  const at::AutoGradMode grad(mode == Mode::kGrad);
  if (mode != Mode::kInference) return program();
  const c10::InferenceMode inference;
  program();
}

TEST_P(ForeignOperators, TheKernelThatRunsIsTheOneOfOrdinaryTensors) {
  FakeSource source;
  for (const Kernels& way : kWays) {
    for (const Mode mode : {Mode::kGrad, Mode::kNoGrad, Mode::kInference}) {
      in_mode(mode, [&] {
        SCOPED_TRACE(fmt::format("{} in mode {}", way.name, static_cast<int>(mode)));
        source.acquired.clear();
        const std::string expected = library_.run(way.name, at::ones({4}));
        EXPECT_EQ(library_.run(way.name, source.view(0, {4})), expected);
        EXPECT_EQ(source.acquired, (std::map<uint32_t, int>{{0, 1}}));
      });
    }
  }
  EXPECT_TRUE(source.all_released());
}

// On a GPU it is the CUDA one; here the device without memory stands for it.
TEST_P(ForeignOperators, TheKernelIsTheOneForTheDevice) {
  const auto binding = std::make_shared<ChunkBinding>();
  const auto storage = c10::make_intrusive<ChunkStorage>(binding, 0, 64, c10::Device(c10::kMeta));
  FakeSource source;  // which holds nothing of it
  binding->begin(&source);
  EXPECT_EQ(library_.run("cpu_and_meta", chunk_view(storage, at::kFloat, 0, {4})), "m");
  EXPECT_EQ(library_.run("cpu_and_meta", at::ones({4}, at::kMeta)), "m");
  binding->end();
}

// As it runs for ordinary tensors: above the interception.
TEST_P(ForeignOperators, AKernelThatAutogradRunsIsRun) {
  FakeSource source;
  static thread_local std::optional<c10::OperatorHandle> op;
  op = library_.find("cpu");
  torch::Library own(torch::Library::IMPL,
                     op->operator_name().name.substr(0, op->operator_name().name.find(':')),
                     DispatchKey::AutogradCPU, __FILE__, static_cast<uint32_t>(__LINE__));
  own.impl("cpu", torch::CppFunction(+[](const at::Tensor& tensor) {
             ran += 'a';
             const at::AutoDispatchBelowAutograd below;
             return op->typed<at::Tensor(const at::Tensor&)>().call(tensor);
           }));
  EXPECT_EQ(library_.run("cpu", source.view(0, {4}).requires_grad_()), "ac");
  EXPECT_EQ(source.acquired, (std::map<uint32_t, int>{{0, 1}}));
}

// ---- an operator of a TorchScript class ----

struct Scale : torch::CustomClassHolder {
  explicit Scale(double factor) : by(factor) {}
  const double by;
};

template <char kName>
at::Tensor scaled(const c10::intrusive_ptr<Scale>& scale, const at::Tensor& tensor) {
  ran += kName;
  return sum_by_address(tensor) * scale->by;
}

TORCH_LIBRARY(elixir_foreign_class, library) {
  library.class_<Scale>("Scale").def(torch::init<double>());
  library.def(
      "scaled(__torch__.torch.classes.elixir_foreign_class.Scale scale, Tensor value) -> Tensor");
  library.impl("scaled", torch::dispatch(DispatchKey::CompositeExplicitAutograd, scaled<'d'>));
  library.impl("scaled", torch::dispatch(DispatchKey::CPU, scaled<'c'>));
}

TEST(ClassOperators, TheOneOfATorchScriptClassRunsItsDevicesKernel) {
  FakeSource source;
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("elixir_foreign_class::scaled", "")
                      .typed<at::Tensor(const c10::intrusive_ptr<Scale>&, const at::Tensor&)>();
  const auto twice = c10::make_intrusive<Scale>(2);
  for (const Mode mode : {Mode::kGrad, Mode::kNoGrad, Mode::kInference}) {
    in_mode(mode, [&] {
      ran.clear();
      const at::Tensor seen = op.call(twice, source.view(0, {4}));
      EXPECT_TRUE(at::equal(seen, op.call(twice, source.plain(0, {4}))));
      EXPECT_EQ(ran, "cc");
    });
  }
  EXPECT_EQ(source.acquired, (std::map<uint32_t, int>{{0, 3}}));
}

// ---- layouts whose kernels are chosen before the interception ----

struct Layout {
  const char* name;
  std::function<at::Tensor(const at::Tensor& parameter)> run;
};

at::Tensor ramp() { return at::arange(64, at::kFloat).view({8, 8}); }

const Layout kLayouts[] = {
    {"sparse mm", [](const at::Tensor& p) { return at::mm(ramp().to_sparse(), p); }},
    {"sparse addmm", [](const at::Tensor& p) { return at::addmm(p, ramp().to_sparse(), p); }},
    {"sparse rows mm", [](const at::Tensor& p) { return at::mm(ramp().to_sparse_csr(), p); }},
    {"sparse rows addmm",
     [](const at::Tensor& p) { return at::addmm(p, ramp().to_sparse_csr(), p); }},
    {"sparse mul", [](const at::Tensor& p) { return at::mul(ramp().to_sparse(), p).to_dense(); }},
    {"dense add sparse", [](const at::Tensor& p) { return at::add(p, ramp().to_sparse()); }},
    {"sampled addmm",
     [](const at::Tensor& p) {
       return at::sparse_sampled_addmm(ramp().to_sparse_csr(), p, p).to_dense();
     }},
    {"MKLDNN",
     [](const at::Tensor& p) { return at::add(ramp().to_mkldnn(), p.to_mkldnn()).to_dense(); }},
    {"nested linear",
     [](const at::Tensor& p) {
       const at::Tensor nested = at::_nested_tensor_from_tensor_list({ramp(), ramp() + 1});
       return at::linear(nested, p).to_padded_tensor(0);
     }},
};

TEST(Layouts, ParametersBesideTensorsOfOtherLayoutsAreGathered) {
  FakeSource source;
  for (const Layout& layout : kLayouts) {
    for (const Mode mode : {Mode::kGrad, Mode::kNoGrad, Mode::kInference}) {
      in_mode(mode, [&] {
        SCOPED_TRACE(fmt::format("{} in mode {}", layout.name, static_cast<int>(mode)));
        const at::Tensor expected = layout.run(source.plain(0, {8, 8}));
        EXPECT_TRUE(at::equal(layout.run(source.view(0, {8, 8})), expected));
      });
    }
  }
  EXPECT_TRUE(source.all_released());
}

TEST(Layouts, AnotherLibrarysKernelForOneIsIntercepted) {
  FakeSource source;
  const Library early(true);
  ran.clear();
  early.find("with_sparse")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>()
      .call(ramp().to_sparse(), source.view(0, {4}));
  EXPECT_EQ(ran, "s");
  EXPECT_EQ(source.acquired, (std::map<uint32_t, int>{{0, 1}}));
}

// torch's own operators of another layout, and those of ordinary tensors, run as ever.
TEST(Layouts, OrdinaryTensorsAreComputedAsEver) {
  FakeSource source;
  const at::Tensor weight = ramp().clone().requires_grad_();
  const at::Tensor product = at::mm(ramp().to_sparse(), weight);
  EXPECT_TRUE(at::equal(product, at::mm(ramp(), ramp())));
  product.sum().backward();
  EXPECT_TRUE(at::allclose(weight.grad(), ramp().t().sum(1, true).expand({8, 8})));
  const at::Tensor mkldnn = ramp().to_mkldnn().requires_grad_();
  at::reshape(mkldnn, {4, 16});  // CompositeImplicitAutograd, whose kernel must stay the only one
  EXPECT_TRUE(source.acquired.empty());
}

}  // namespace
}  // namespace elixir
