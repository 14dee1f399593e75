// Regions that keep the results of their products, or everything, as the plan says: the bits of
// plain backward, and nothing that was kept is computed again.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <string>

#include "client/regions/region_plan.h"
#include "client/tensors/checkpoint.h"
#include "tests/client/region_blocks.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

constexpr RegionPlan kProductsOfThree{.regions = 3, .keep_products = 3};
constexpr RegionPlan kAllOfThree{.regions = 3, .keep_all = 3};

class KeptRegions : public RegionTest {
 protected:
  ~KeptRegions() override { set_region_plan({}); }
};

TEST_F(KeptRegions, ComputeNoStoredProductAgain) {
  set_region_plan(kProductsOfThree);
  EXPECT_GT(bits_are_equal(GptBlock(), 3), 0);
  EXPECT_EQ(counted_.products(), 0);
  EXPECT_GT(counted_.count("aten::gelu"), 0);
  set_region_plan({.regions = 3, .keep_products = 1});
  counted_.clear();
  bits_are_equal(GptBlock(), 3);
  EXPECT_EQ(counted_.products(), 2 * 2 * 3);  // two steps of two regions
}

TEST_F(KeptRegions, ComputeNothingAgainThatKeepAll) {
  set_region_plan(kAllOfThree);
  bits_are_equal(LlamaBlock(), 3);
  EXPECT_EQ(counted_.products(), 0);
  EXPECT_EQ(counted_.count("aten::silu"), 0);
  set_region_plan({.regions = 3, .keep_all = 1, .keep_products = 1});
  bits_are_equal(LlamaBlock(), 3);
  EXPECT_EQ(counted_.products(), 2 * 6);
  EXPECT_EQ(counted_.count("aten::silu"), 2 * 2);
}

TEST_F(KeptRegions, KeepNothingBeyondTheRegionsOfThePlan) {
  set_region_plan({.regions = 2, .keep_all = 2});
  bits_are_equal(GptBlock(), 3);
  EXPECT_EQ(counted_.products(), 2 * 3);
}

// relu_ writes what the product has returned: its memory holds something else at the region's end.
TEST_F(KeptRegions, DoNotTakeAProductThatWasWritten) {
  struct Written : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      return GptBlock::operator()(x.mm(weights[1]).relu_()).mm(weights[1]);
    }
  };
  set_region_plan(kProductsOfThree);
  bits_are_equal(Written(), 3);
  EXPECT_EQ(counted_.products(), 2 * 3);  // the written one
}

// Behind the region, which returns the product itself.
TEST_F(KeptRegions, DoNotTakeAProductThatTheProgramWroteLater) {
  const GptBlock block;
  const auto gradients = [&](bool writes) {
    at::Tensor x = at::full({6, 8}, 0.25).requires_grad_();
    const at::Tensor first = x;
    for (int i = 0; i < 3; ++i) {
      const Function body = [&block](const at::Tensor& in) {
        return (in.mm(block.weights[1]) + 1).mm(block.weights[1]).exp();
      };
      const TensorsFunction two = [&](const std::vector<at::Tensor>& in) {
        const at::Tensor product = in[0].mm(block.weights[1]);
        return std::vector<at::Tensor>{product, body(product)};
      };
      const std::vector<at::Tensor> out = checkpoint(two, {x});
      x = out[1] + out[0].detach().clone();
      const at::NoGradGuard no_grad;
      if (writes) out[0].detach().mul_(3);  // backward may not see it
    }
    x.sum().backward();
    std::vector<at::Tensor> result = take_gradients(block);
    result.push_back(first.grad());
    return result;
  };
  set_stops_early(false);
  const std::vector<at::Tensor> whole = gradients(false);
  set_stops_early(true);
  for (const RegionPlan& plan : {kProductsOfThree, kAllOfThree}) {
    set_region_plan(plan);
    for (int i = 0; i < 3; ++i) expect_equal(gradients(true), whole);
  }
}

TEST_F(KeptRegions, WithDropoutDrawTheSameNumbers) {
  struct Dropped : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      return x + at::dropout(GptBlock::operator()(at::dropout(x, 0.25, true)), 0.25, true);
    }
  };
  for (const RegionPlan& plan : {kProductsOfThree, kAllOfThree}) {
    set_region_plan(plan);
    bits_are_equal(Dropped(), 3);
  }
}

TEST_F(KeptRegions, UnderAutocastToo) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const RegionPlan& plan :
       {RegionPlan{.regions = 1, .keep_products = 1}, RegionPlan{.regions = 1, .keep_all = 1}}) {
    set_region_plan(plan);
    counted_.clear();
    bits_are_equal(GptBlock());
    EXPECT_EQ(counted_.products(), 0);
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

TEST_F(KeptRegions, OfNestedRegionsTheOuterOneDecides) {
  struct Outer : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      const Function inner = [this](const at::Tensor& in) { return GptBlock::operator()(in); };
      return checkpoint(inner, GptBlock::operator()(x));
    }
  };
  for (const RegionPlan& plan : {kProductsOfThree, kAllOfThree}) {
    set_region_plan(plan);
    bits_are_equal(Outer(), 3);
  }
}

TEST_F(KeptRegions, CountAnewAfterAPassThatWasGivenUp) {
  set_region_plan({.regions = 3, .keep_all = 1});
  const GptBlock block;
  const Function body = [&block](const at::Tensor& in) { return block(in); };
  checkpoint(body, checkpoint(body, input()));  // and no backward
  bits_are_equal(block, 3);
  EXPECT_EQ(counted_.products(), 2 * 2 * 3);
}

// As without a plan, so that a plan changes nothing but time and memory.
TEST_F(KeptRegions, RefuseWhatOtherRegionsRefuse) {
  for (const RegionPlan& plan : {RegionPlan{}, RegionPlan{.regions = 1, .keep_all = 1}}) {
    set_region_plan(plan);
    const at::Tensor x = input().requires_grad_();
    const auto body = [](const at::Tensor& in) { return in.exp(); };
    EXPECT_THROW(checkpoint(body, x).sum().backward({}, false, /*create_graph=*/true), Error);
    const auto writes = [](const at::Tensor& in) { return in.mul_(2); };
    EXPECT_THROW(checkpoint(writes, x.detach().clone()), Error);
  }
}

}  // namespace
}  // namespace elixir::test
