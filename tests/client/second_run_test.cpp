// Second runs of checkpointed regions end at the last operator whose result somebody needs, with
// the bits of whole runs, and whoever reads what was left out gets it.

#include "client/tensors/second_run.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include <functional>
#include <string>

#include "client/tensors/checkpoint.h"
#include "tests/client/region_blocks.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

class SecondRuns : public RegionTest {};

TEST_F(SecondRuns, LeaveOutTheLastProductAndTheSumBehindIt) {
  const GptBlock gpt;
  step(gpt);
  EXPECT_EQ(counted_.products(), 4);  // observed
  EXPECT_EQ(counted_.will_be_left_out(), 2U);
  counted_.clear();
  step(gpt);
  EXPECT_EQ(counted_.products(), 3);
  EXPECT_EQ(counted_.left_out_operators(), 2);
  EXPECT_EQ(counted_.will_be_left_out(), 0U);
}

TEST_F(SecondRuns, KnowTheLayersThatAreLikeTheLast) {
  const LlamaBlock llama;
  step(llama, 2);  // its last layer is observed, and the first is like it
  EXPECT_EQ(counted_.products(), 7 + 6);
}

TEST_F(SecondRuns, GiveTheBitsOfPlainBackward) {
  EXPECT_EQ(bits_are_equal(GptBlock(), 3), 2 * 3 * 2);
  EXPECT_EQ(bits_are_equal(LlamaBlock(), 3), 2 * 3 * 3);
}

TEST_F(SecondRuns, KeepWhatTheNextOperatorReads) {
  struct Normed : GptBlock {  // after its last product, as in OLMo 2
    at::Tensor operator()(const at::Tensor& x) const {
      return x + at::layer_norm(GptBlock::operator()(x), {8});
    }
  };
  // The norm keeps what it reads. Only the sum behind it is left out.
  EXPECT_EQ(bits_are_equal(Normed()), 2 * 1);
}

// Its mask is kept, and random numbers are drawn in their order.
TEST_F(SecondRuns, RunUpToDropout) {
  struct Dropped : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      return x + at::dropout(GptBlock::operator()(x), 0.25, true);
    }
  };
  EXPECT_GT(bits_are_equal(Dropped()), 0);
  EXPECT_EQ(counted_.products(), 2 * 4);
}

TEST_F(SecondRuns, MayWriteTheirOwnTensorsInPlace) {
  struct InPlace : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      return GptBlock::operator()(x).add_(x).mul_(2);
    }
  };
  EXPECT_EQ(bits_are_equal(InPlace()), 2 * 4);
  struct Kept : GptBlock {  // relu_ keeps its result, which is the product's memory
    at::Tensor operator()(const at::Tensor& x) const { return GptBlock::operator()(x).relu_(); }
  };
  EXPECT_EQ(bits_are_equal(Kept()), 0);
}

TEST_F(SecondRuns, OfNestedRegionsLeaveInnerOnesOut) {
  struct Outer : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      const Function inner = [this](const at::Tensor& in) { return GptBlock::operator()(in); };
      return checkpoint(inner, GptBlock::operator()(x));
    }
  };
  const Outer outer;
  EXPECT_GT(bits_are_equal(outer), 2 * (2 + 4));
}

TEST_F(SecondRuns, MayHaveOutputsThatNobodyUses) {
  const GptBlock block;
  const auto run = [&] {
    const at::Tensor x = at::full({6, 8}, 0.5).requires_grad_();
    const TensorsFunction body = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
      return {block(in[0]), in[0] * 2, in[0].exp()};
    };
    checkpoint(body, {x})[0].sum().backward();
    return x.grad();
  };
  const at::Tensor first = run();
  const std::vector<at::Tensor> gradients = take_gradients(block);
  EXPECT_TRUE(at::equal(run(), first));
  expect_equal(take_gradients(block), gradients);
}

TEST_F(SecondRuns, UnderAutocastToo) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_GE(bits_are_equal(GptBlock()), 2 * 2);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

// ---- what others read is computed ----

// A block with something behind it that is not the same in every run.
struct Changing : GptBlock {
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& y)> then =
      [](const at::Tensor& /*x*/, const at::Tensor& y) { return y; };

  at::Tensor operator()(const at::Tensor& x) const { return then(x, GptBlock::operator()(x)); }
};

// Two runs learn and leave out. Then `then` comes behind: the bits are plain, and are from then on,
// and at most `left_out` operators of a run are left out in the end.
void bits_are_plain_after(const decltype(Changing::then)& then, CountedRuns* counted,
                          int left_out = 0) {
  Changing block;
  step(block);
  step(block);
  EXPECT_GT(counted->left_out_operators(), 0);
  take_gradients(block);
  block.then = then;
  const at::Tensor plain = step(block, 1, /*checkpointed=*/false);
  const std::vector<at::Tensor> gradients = take_gradients(block);
  for (int i = 0; i < 3; ++i) {
    counted->clear();
    EXPECT_TRUE(at::equal(step(block), plain)) << i;
    expect_equal(take_gradients(block), gradients);
  }
  EXPECT_EQ(counted->left_out_operators(), left_out);
}

TEST_F(SecondRuns, WithAnotherOperatorBehindRunWhole) {
  bits_are_plain_after([](const at::Tensor&, const at::Tensor& y) { return y.relu(); }, &counted_);
}

TEST_F(SecondRuns, ThatEndBeforeTheirTailRunWhole) {
  Changing block;
  step(block);
  const at::Tensor x = input();
  take_gradients(block);
  // As many operators as are needed, and one more.
  struct Shorter : GptBlock {
    at::Tensor operator()(const at::Tensor& in) const {
      const std::vector<at::Tensor> heads = at::layer_norm(in, {8}).mm(weights[0]).split(8, 1);
      const at::Tensor scores = at::softmax(heads[0] * heads[1], 1) * heads[2];
      const at::Tensor middle = in + scores.mm(weights[1]);
      return at::gelu(at::layer_norm(middle, {8}).mm(weights[2])).mm(weights[3]);
    }
  };
  bits_are_equal(Shorter());
}

TEST_F(SecondRuns, WhoseResultIsHeldByTheProgramRunWhole) {
  auto held = std::make_shared<std::vector<at::Tensor>>();
  bits_are_plain_after(
      [held](const at::Tensor&, const at::Tensor& y) {
        held->push_back(y);
        return y;
      },
      &counted_);
  // The tensor of the aborted run has no values, and its error says why. All others have values.
  int without = 0;
  for (const at::Tensor& one : *held) {
    try {
      EXPECT_TRUE(at::equal(one.detach(), held->front().detach()));
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("not computed again"), std::string::npos);
      ++without;
    }
  }
  EXPECT_LE(without, 1);
}

TEST_F(SecondRuns, WhoseResultIsReadByPointerRunWhole) {
  auto read = std::make_shared<std::vector<float>>();
  bits_are_plain_after(
      [read](const at::Tensor&, const at::Tensor& y) {
        read->push_back(y.detach().const_data_ptr<float>()[3]);
        return y;
      },
      &counted_);
  for (const float value : *read) EXPECT_EQ(value, read->front());
}

TEST_F(SecondRuns, WhoseResultDecidesRunWhole) {
  bits_are_plain_after(
      [](const at::Tensor&, const at::Tensor& y) {
        return y.sum().item<float>() > 0 ? y * 2 : y * 3;
      },
      &counted_, /*left_out=*/1);
}

TEST_F(SecondRuns, OfAFunctionThatSwallowsErrorsRunWhole) {
  bits_are_plain_after(
      [](const at::Tensor& x, const at::Tensor& y) {
        try {
          return y.relu();
        } catch (const std::exception&) {
          return x;
        }
      },
      &counted_);
}

TEST_F(SecondRuns, ThatWriteATensorOfTheProgramRunThat) {
  at::Tensor sum = at::zeros({6, 8});
  struct Counting : GptBlock {
    at::Tensor* sum;
    at::Tensor operator()(const at::Tensor& x) const {
      at::Tensor y = GptBlock::operator()(x);
      const at::NoGradGuard no_grad;
      sum->add_(y.detach());
      return y;
    }
  };
  Counting block;
  block.sum = &sum;
  for (int i = 0; i < 3; ++i) step(block);
  const at::Tensor six = sum.clone();
  sum.zero_();
  step(block, 1, /*checkpointed=*/false);
  EXPECT_TRUE(at::allclose(six, sum * 6));  // twice a step, the second run's too
}

// A region of one block, and regions of two that begin like it.
TEST_F(SecondRuns, OfSortsThatBeginAlikeEndWhereTheLongerOneMay) {
  const GptBlock block;
  const auto gradients = [&](bool checkpointed) {
    at::Tensor x = at::full({6, 8}, 0.25).requires_grad_();
    const at::Tensor first = x;
    for (const int blocks : {2, 2, 1}) {
      const Function body = [&block, blocks](const at::Tensor& in) {
        return blocks == 2 ? block(block(in)) : block(in);
      };
      x = checkpointed ? checkpoint(body, x) : body(x);
    }
    x.square().sum().backward();
    std::vector<at::Tensor> result = take_gradients(block);
    result.push_back(first.grad());
    return result;
  };
  const std::vector<at::Tensor> plain = gradients(false);
  for (int i = 0; i < 4; ++i) {
    counted_.clear();
    expect_equal(gradients(true), plain);
  }
  EXPECT_EQ(counted_.left_out_operators(), 2 * 2);
}

// at::full is memory that no operator makes, and a write to it. Code reads it by a pointer.
TEST_F(SecondRuns, WriteMemoryThatCodeReadsByPointer) {
  struct Pointers : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      const at::Tensor y = GptBlock::operator()(x);
      const at::Tensor two = at::full({8}, 2.0), six = at::empty({8});
      for (int64_t i = 0; i < 8; ++i) {
        six.data_ptr<float>()[i] = two.const_data_ptr<float>()[i] * 3;
      }
      return y * six;
    }
  };
  bits_are_equal(Pointers());
  EXPECT_EQ(counted_.count("aten::fill_"), 2);  // in each of the last two steps
}

TEST_F(SecondRuns, WriteTensorsOfNeededOperatorsInPlace) {
  auto held = std::make_shared<std::vector<at::Tensor>>();
  Changing block;
  block.then = [held](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor before = x + 1;
    const at::Tensor kept = x.exp();
    {
      const at::NoGradGuard no_grad;
      before.mul_(2);
    }
    if (held->size() > 100) held->push_back(before);
    return y * kept;
  };
  step(block);
  step(block);
  held->resize(101);  // from now on the program holds it
  step(block);
  for (size_t i = 101; i < held->size(); ++i) {
    EXPECT_TRUE(at::equal((*held)[i].detach(), (*held)[101].detach())) << i;
  }
  EXPECT_EQ(held->size(), 103U);
}

TEST_F(SecondRuns, TurnTensorsInPlace) {
  struct Turned : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      const at::Tensor y = GptBlock::operator()(x);
      return y.mm(y.t()).t_().as_strided({6, 6}, {6, 1}).narrow(1, 0, 6).mm(x);
    }
  };
  bits_are_equal(Turned());
}

TEST_F(SecondRuns, LetErrorsOfTheFunctionPass) {
  Changing block;
  int calls = 0;
  block.then = [&calls](const at::Tensor& /*x*/, const at::Tensor& y) {
    if (++calls == 6) throw std::runtime_error("of the function");
    return y;
  };
  step(block);
  step(block);
  try {
    step(block);
    ADD_FAILURE() << "swallowed";
  } catch (const std::runtime_error& failure) {
    EXPECT_STREQ(failure.what(), "of the function");
  }
  EXPECT_EQ(calls, 6);
}

// The aborted run's inputs are not those of the run that counts.
TEST_F(SecondRuns, LeaveHooksAtTheirOwnInputs) {
  bool held = false;
  auto kept = std::make_shared<std::vector<at::Tensor>>();
  const auto gradient = [&] {
    const GptBlock block;
    const at::Tensor x = at::full({6, 8}, 0.25).requires_grad_();
    const Function body = [&](const at::Tensor& in) {
      if (at::GradMode::is_enabled()) {
        in.register_hook([](const at::Tensor& grad) { return grad * 2; });
      }
      const at::Tensor y = block(in);
      if (held) kept->push_back(y);
      return y;
    };
    at::manual_seed(3);
    checkpoint(body, x).square().sum().backward();
    return x.grad();
  };
  at::manual_seed(9);
  gradient();
  at::manual_seed(9);
  const at::Tensor early = gradient();
  held = true;
  at::manual_seed(9);
  EXPECT_TRUE(at::equal(gradient(), early));
}

TEST_F(SecondRuns, CountABatchOfBatchNormTwice) {
  const at::Tensor mean = at::zeros({8}), variance = at::ones({8});
  const GptBlock block;
  const Function body = [&](const at::Tensor& x) {
    const at::Tensor y = block(x);
    const at::NoGradGuard no_grad;
    at::batch_norm(y, {}, {}, mean, variance, /*training=*/true, /*momentum=*/1, 1e-5, false);
    mean.add_(1);
    return y;
  };
  const auto count = [&] {
    mean.zero_();
    checkpoint(body, at::full({6, 8}, 0.25).requires_grad_()).sum().backward();
    return mean.clone();
  };
  const at::Tensor first = count();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(count(), first));
}

TEST_F(SecondRuns, TakeNestedTensors) {
  struct Nested : GptBlock {
    at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({8}), at::ones({5})});
    at::Tensor operator()(const at::Tensor& x) const {
      return GptBlock::operator()(x) + (nested * 2).to_padded_tensor(0).sum(0).mul(x);
    }
  };
  bits_are_equal(Nested());
}

TEST_F(SecondRuns, RunWholeUnderAProfilerThatLooksAtTensors) {
  const GptBlock block;
  step(block);
  step(block);
  counted_.clear();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) {
        for (const c10::IValue& input : function.inputs()) {
          if (input.isTensor() && input.toTensor().defined() && input.toTensor().has_storage()) {
            EXPECT_NO_THROW(static_cast<void>(input.toTensor().storage().data()));
          }
        }
        return std::unique_ptr<at::ObserverContext>();
      }).needsInputs(true));
  step(block);
  at::removeCallback(handle);
  EXPECT_EQ(counted_.left_out_operators(), 0);
}

// On CUDA they have kernels of their own, which forward takes.
TEST_F(SecondRuns, CallOperatorsWithPartsAsForwardDoes) {
  struct Parts : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      const at::Tensor y = GptBlock::operator()(at::rms_norm(x, {8}));
      return at::silu(at::rms_norm(y, {8}));
    }
  };
  bits_are_equal(Parts());
  const at::AutoDispatchBelowAutograd below;
  const at::Tensor x = input();
  EXPECT_TRUE(at::equal(at::silu_backward(x, x), [&] {
    const c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKey::CustomRNGKeyId);
    return at::silu_backward(x, x);
  }()));
}

// As programs run: nobody else observes, and forward runs without an observer.
TEST(UnobservedRegions, HaveTheBitsOfPlainBackward) {
  keep_interception();
  const LlamaBlock block;
  const at::Tensor plain = step(block, 3, /*checkpointed=*/false);
  const std::vector<at::Tensor> gradients = take_gradients(block);
  for (const RegionPlan& plan : {RegionPlan{}, RegionPlan{.regions = 3, .keep_products = 2},
                                 RegionPlan{.regions = 3, .keep_all = 1, .keep_products = 1}}) {
    set_region_plan(plan);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(step(block, 3), plain)) << i;
      expect_equal(take_gradients(block), gradients);
    }
  }
  set_region_plan({});
}

// A region in the region draws after it, from the generator as it is by then.
TEST_F(SecondRuns, DrawTheRandomNumbersOfTheProgram) {
  struct Drawing : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      const at::Tensor y = GptBlock::operator()(x);
      at::rand_like(y);  // nobody reads it
      return checkpoint([](const at::Tensor& in) { return at::dropout(in.exp(), 0.5, true); }, y);
    }
  };
  bits_are_equal(Drawing());
}

TEST_F(SecondRuns, OfManySortsOfOneShapeRunWholeInTheEnd) {
  Changing block;
  for (int i = 0; i < 20; ++i) {
    block.then = [i](const at::Tensor&, const at::Tensor& y) { return (y * (i + 2)).tanh(); };
    const at::Tensor plain = step(block, 1, /*checkpointed=*/false);
    const std::vector<at::Tensor> gradients = take_gradients(block);
    EXPECT_TRUE(at::equal(step(block), plain)) << i;
    expect_equal(take_gradients(block), gradients);
  }
}

TEST_F(SecondRuns, RunWholeWhereThatIsAskedFor) {
  const GptBlock block;
  EXPECT_GT(bits_are_equal(block), 0);
  counted_.clear();
  set_stops_early(false);
  step(block);
  set_stops_early(true);
  EXPECT_EQ(counted_.left_out_operators(), 0);
  EXPECT_EQ(counted_.products(), 4);
}

}  // namespace
}  // namespace elixir::test
