#pragma once

// Blocks of transformers as checkpointed regions, their gradients, and the operators that their
// second runs compute.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <string>

#include "client/regions/region_plan.h"
#include "client/tensors/checkpoint.h"
#include "client/tensors/interception.h"
#include "client/tensors/region_observer.h"
#include "client/tensors/second_run.h"
#include "tests/support/matchers.h"

namespace elixir::test {

using Function = std::function<at::Tensor(const at::Tensor&)>;

// Counts the operators of second runs by name, gradients left out.
class CountedRuns final : public OperatorObserver, public RegionObserver {
 public:
  CountedRuns() : before_(observe_regions(this)) {}
  ~CountedRuns() override { observe_regions(before_); }

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
           std::vector<c10::IValue>* stack) override {
    if (in_second_run_ && depth_ == 0) ++counts_[op.schema().name()];
    ++depth_;
    op.redispatchBoxed(below, stack);
    --depth_;
  }
  void left_out() override { ++left_out_; }
  void region_begins(std::optional<uint32_t> /*number*/,
                     const std::vector<Boundary>& /*boundaries*/) override {}
  void region_ends() noexcept override {}
  void second_run_begins() override { in_second_run_ = true; }
  void second_run_ends(uint32_t left_out) noexcept override {
    in_second_run_ = false;
    will_be_left_out_ = left_out;
  }

  int products() const {
    int result = 0;
    for (const auto& [name, count] : counts_) {
      const bool product = name == "aten::mm" || name == "aten::addmm" || name == "aten::bmm" ||
                           name == "aten::mkldnn_linear" || name == "aten::linear";
      if (product) result += count;
    }
    return result;
  }
  int count(const std::string& name) const {
    const auto found = counts_.find(name);
    return found == counts_.end() ? 0 : found->second;
  }
  int left_out_operators() const { return left_out_; }
  uint32_t will_be_left_out() const { return will_be_left_out_; }
  void clear() { counts_.clear(), left_out_ = 0; }

 private:
  RegionObserver* const before_;
  const ObservedOperators operators_{this};
  std::map<std::string, int> counts_;
  int depth_ = 0, left_out_ = 0;
  uint32_t will_be_left_out_ = 0;
  bool in_second_run_ = false;
};

inline at::Tensor weight(int64_t rows, int64_t columns) {
  return (at::randn({rows, columns}) / 4).requires_grad_();
}

// Four products, and an activation that keeps its input.
struct GptBlock {
  std::vector<at::Tensor> weights{weight(8, 24), weight(8, 8), weight(8, 32), weight(32, 8)};

  at::Tensor operator()(const at::Tensor& x) const {
    const std::vector<at::Tensor> heads = at::layer_norm(x, {8}).mm(weights[0]).split(8, 1);
    const at::Tensor scores = at::softmax(heads[0] * heads[1], 1) * heads[2];
    const at::Tensor middle = x + scores.mm(weights[1]);
    return middle + at::gelu(at::layer_norm(middle, {8}).mm(weights[2])).mm(weights[3]);
  }
};

// Seven products, the last of a gated sum.
struct LlamaBlock {
  std::vector<at::Tensor> weights{weight(8, 8),  weight(8, 8),  weight(8, 8), weight(8, 8),
                                  weight(8, 16), weight(8, 16), weight(16, 8)};

  static at::Tensor norm(const at::Tensor& x) {
    return x * at::rsqrt(x.pow(2).mean({1}, true) + 1e-5);
  }
  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor in = norm(x);
    const at::Tensor scores =
        at::softmax(in.mm(weights[0]) * in.mm(weights[1]), 1) * in.mm(weights[2]);
    const at::Tensor middle = x + scores.mm(weights[3]);
    const at::Tensor up = norm(middle);
    const at::Tensor inner = at::silu(up.mm(weights[4])) * up.mm(weights[5]);
    // As at::linear without bias does with a batch of sequences.
    return middle + at::_unsafe_view(inner.mm(weights[6]), {6, 8});
  }
};

inline at::Tensor input() { return at::randn({6, 8}); }

// Runs `layers` of the block, each a region, and backward. The gradient of the input.
template <typename Block>
at::Tensor step(const Block& block, int layers = 1, bool checkpointed = true) {
  at::manual_seed(3);
  const at::Tensor x = input().requires_grad_();
  at::Tensor y = x;
  for (int i = 0; i < layers; ++i) {
    const Function body = [&block](const at::Tensor& in) { return block(in); };
    y = checkpointed ? checkpoint(body, y) : body(y);
  }
  y.square().sum().backward();
  return x.grad();
}

template <typename Block>
std::vector<at::Tensor> take_gradients(const Block& block) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& one : block.weights) {
    result.push_back(one.grad());
    one.mutable_grad().reset();
  }
  return result;
}

inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].defined(), b[i].defined()) << i;
    if (a[i].defined() && b[i].defined()) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << i;
    }
  }
}

// Each test knows no region at its begin.
class RegionTest : public ::testing::Test {
 protected:
  RegionTest() {
    keep_interception();
    at::manual_seed(17);
  }
  CountedRuns counted_;

  // The block's gradients are those of regions that keep nothing and run whole, in three steps.
  // Returns the operators that the last two left out.
  template <typename Block>
  int bits_are_equal(const Block& block, int layers = 1) {
    const RegionPlan plan = region_plan();
    set_region_plan({});
    set_stops_early(false);
    const at::Tensor whole = step(block, layers);
    set_stops_early(true);
    set_region_plan(plan);
    const std::vector<at::Tensor> gradients = take_gradients(block);
    counted_.clear();
    for (int i = 0; i < 3; ++i) {
      if (i == 1) counted_.clear();
      EXPECT_TRUE(at::equal(step(block, layers), whole)) << i;
      expect_equal(take_gradients(block), gradients);
    }
    return counted_.left_out_operators();
  }
};

}  // namespace elixir::test
