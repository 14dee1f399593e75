// Modules without memory: the bits that they would have had, whatever the order.

#include "client/tensors/meta_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/module.h>

#include "models/decoder.h"
#include "tests/models/built.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

const planner::TransformerConfig kTiny = tiny_gpt2_config({.width = 24, .heads = 3});

// Initialised by torch's default generator, one after the other, with a buffer.
struct Plain : torch::nn::Module {
  Plain() {
    const at::NoGradGuard no_grad;
    for (at::Tensor* weight : {&first, &second}) {
      *weight = torch::empty({4, 6});
      weight->uniform_(-1, 1);
      weight->mul_(2);
    }
    register_parameter("first", first);
    register_parameter("second", second);
    steps = register_buffer("steps", torch::arange(5));
    scaled = register_buffer("scaled", torch::ones({3}).mul_(2).to(at::kDouble));
  }
  at::Tensor first, second, steps, scaled;
};

TEST(MetaInit, GivesGpt2TheBitsOfTheEagerOne) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::shared_ptr<Decoder> eager = built(kTiny, {.seed = 7, .dtype = dtype});
    const std::shared_ptr<Decoder> meta = [&] {
      const MetaInit without_memory;
      return built(kTiny, {.seed = 7, .dtype = dtype});
    }();
    const auto expected = eager->named_parameters();
    const auto all = meta->named_parameters().items();
    for (auto item = all.rbegin(); item != all.rend(); ++item) {  // the last first
      ASSERT_TRUE(item->value().is_meta()) << item->key();
      const at::Tensor values = materialise(item->value());
      ASSERT_TRUE(values.device().is_cpu());
      EXPECT_EQ(values.scalar_type(), dtype);
      EXPECT_TRUE(values.equal(expected[item->key()])) << item->key();
      EXPECT_TRUE(materialise(item->value()).equal(values)) << "a second time: " << item->key();
    }
  }
}

TEST(MetaInit, ValuesDependOnTheSeedAndNotOnTheOrder) {
  const auto build = [](uint64_t seed) {
    at::manual_seed(seed);
    const MetaInit without_memory;
    return Plain();
  };
  const Plain a = build(3), b = build(3), other = build(4);
  const at::Tensor second_first = materialise(a.second), first = materialise(a.first);
  EXPECT_TRUE(materialise(b.first).equal(first));
  EXPECT_TRUE(materialise(b.second).equal(second_first));
  EXPECT_FALSE(first.equal(second_first));
  EXPECT_FALSE(materialise(other.first).equal(first));
  EXPECT_GT(first.abs().max().item<double>(), 1);  // the scaling is there
  EXPECT_LE(first.abs().max().item<double>(), 2);
  EXPECT_TRUE(materialise(a.steps).equal(at::arange(5)));
  EXPECT_TRUE(materialise(a.scaled).equal(at::full({3}, 2.0, at::kDouble)));
}

TEST(MetaInit, MaterialisingLeavesTorchsRandomNumbersAlone) {
  at::manual_seed(3);
  at::Tensor drawn;
  {
    const MetaInit without_memory;
    drawn = at::randn({5});  // takes no generator of its own
  }
  const at::Tensor before = at::rand({3});
  at::manual_seed(3);
  {
    const MetaInit without_memory;
    at::randn({5});
  }
  const at::Tensor values = materialise(drawn);
  EXPECT_TRUE(at::rand({3}).equal(before));
  EXPECT_TRUE(materialise(drawn).equal(values));
}

TEST(MetaInit, ViewsAndCopiesAreRemembered) {
  const at::NoGradGuard no_grad;
  const at::Tensor source = at::arange(6, at::kFloat);
  at::Tensor whole, copy, rows;
  {
    const MetaInit without_memory;
    whole = torch::zeros({2, 6});
    whole.select(0, 1).copy_(source);
    rows = whole.t().narrow(0, 2, 2);
    copy = whole.clone();
    whole.fill_(9);  // the copy is of before
  }
  at::Tensor expected = at::zeros({2, 6});
  expected.select(0, 1).copy_(source);
  EXPECT_TRUE(materialise(copy).equal(expected));
  EXPECT_TRUE(materialise(whole).equal(at::full({2, 6}, 9)));
  EXPECT_EQ(materialise(rows).sizes(), at::IntArrayRef({2, 2}));
  source.add_(1);
  EXPECT_THAT(thrown([&] { materialise(copy); }).message(), HasSubstr("has been written to since"));
  EXPECT_TRUE(materialise(whole).equal(at::full({2, 6}, 9)));  // overwritten: forgotten
}

TEST(MetaInit, AGeneratorForSeveralGivesEachItsOwn) {
  const at::NoGradGuard no_grad;
  at::Tensor first, second;
  {
    const MetaInit without_memory;
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
    first = torch::empty({8}).normal_(0, 1, generator);
    second = torch::empty({8}).normal_(0, 1, generator);
  }
  const at::Tensor eager =
      at::empty({8}).normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(5));
  EXPECT_TRUE(materialise(first).equal(eager));
  EXPECT_FALSE(materialise(second).equal(eager));
}

TEST(MetaInit, ATensorWithoutMemoryOrPastIsRefused) {
  expect_thrown(Code::kInvalidArgument, {"build the module under that guard"},
                [] { materialise(at::empty({3}, at::TensorOptions(at::kMeta))); });
  const at::Tensor real = at::rand({3});
  EXPECT_TRUE(materialise(real).equal(real));
}

TEST(MetaInit, EndsWithItsScope) {
  { const MetaInit without_memory; }
  EXPECT_TRUE(at::empty({2}).device().is_cpu());
}

}  // namespace
}  // namespace elixir
