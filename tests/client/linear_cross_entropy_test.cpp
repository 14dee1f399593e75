// The loss in slices of the vocabulary against torch's operators on the whole: its values, its
// gradients, its memory, and what it refuses.

#include "client/tensors/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "base/throw_error.h"
#include "client/profile/counted_memory.h"
#include "client/tensors/checkpoint.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

struct Inputs {
  at::Tensor hidden, weight, targets;

  Inputs to(at::ScalarType type) const {
    const auto leaf = [type](const at::Tensor& tensor) {
      return tensor.detach().to(type).clone().requires_grad_(tensor.requires_grad());
    };
    return {leaf(hidden), leaf(weight), targets};
  }
};

// `scale`: of the logits, about.
Inputs random_inputs(at::IntArrayRef batch, int64_t width, int64_t vocabulary, double scale = 2) {
  at::manual_seed(3);
  std::vector<int64_t> sizes = batch.vec();
  sizes.push_back(width);
  const double deviation = scale / std::sqrt(static_cast<double>(width));
  return {at::randn(sizes).requires_grad_(),
          at::normal(0, deviation, {vocabulary, width}).requires_grad_(),
          at::randint(vocabulary, batch, at::kLong)};
}

at::Tensor of_the_whole(const Inputs& in, double softcap = 0) {
  at::Tensor logits = at::linear(in.hidden, in.weight);
  if (softcap > 0) logits = at::tanh(logits / softcap) * softcap;
  const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::cross_entropy_loss(logits.reshape({-1, in.weight.size(0)}).to(type),
                                in.targets.reshape({-1}));
}

at::Tensor in_slices(const Inputs& in, int64_t slice, double softcap = 0) {
  return linear_cross_entropy(in.hidden, in.weight, in.targets, slice, softcap);
}

struct Outcome {
  at::Tensor loss, to_hidden, to_weight;
};

// Of three times the loss: its gradient is not 1.
Outcome outcome_of(const Inputs& in, const std::function<at::Tensor(const Inputs&)>& function) {
  const Inputs own = in.to(in.hidden.scalar_type());
  const at::Tensor loss = function(own);
  (loss * 3).backward();
  return {loss.detach(), own.hidden.grad(), own.weight.grad()};
}
Outcome whole(const Inputs& in, double softcap = 0) {
  return outcome_of(in, [&](const Inputs& own) { return of_the_whole(own, softcap); });
}
Outcome sliced(const Inputs& in, int64_t slice, double softcap = 0) {
  return outcome_of(in, [&](const Inputs& own) { return in_slices(own, slice, softcap); });
}

// The largest difference, as a share of the largest value.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor one = a.to(at::kDouble), other = b.to(at::kDouble);
  const double most = other.abs().max().item<double>();
  return (one - other).abs().max().item<double>() / (most > 0 ? most : 1);
}

double distance(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.loss.scalar_type(), b.loss.scalar_type());
  EXPECT_EQ(a.to_hidden.scalar_type(), b.to_hidden.scalar_type());
  EXPECT_EQ(a.to_hidden.sizes(), b.to_hidden.sizes());
  return std::max({distance(a.loss, b.loss), distance(a.to_hidden, b.to_hidden),
                   distance(a.to_weight, b.to_weight)});
}

bool same_bits(const Outcome& a, const Outcome& b) {
  return a.loss.equal(b.loss) && a.to_hidden.equal(b.to_hidden) && a.to_weight.equal(b.to_weight);
}

constexpr double kCloseness = 1e-6;
constexpr int64_t kSlices[] = {1, 2, 7, 50, 99, 100, 1000};

TEST(LinearCrossEntropy, IsThatOfTheWholeInEverySlice) {
  for (const double softcap : {0.0, 3.0}) {
    for (const int64_t vocabulary : {1, 2, 100, 513}) {
      Inputs in = random_inputs({3, 11}, 24, vocabulary);
      in.targets.select(0, 1).narrow(0, 2, 5).fill_(kIgnoredTarget);
      for (const int64_t slice : kSlices) {
        EXPECT_LT(distance(sliced(in, slice, softcap), whole(in, softcap)),
                  slice > 2 ? kCloseness : 2 * kCloseness)
            << vocabulary << " rows, " << slice << " at a time, softcap " << softcap;
        const Inputs fp64 = in.to(at::kDouble);
        EXPECT_LT(distance(sliced(fp64, slice, softcap), whole(fp64, softcap)), 1e-14)
            << vocabulary << " rows, " << slice << " at a time, softcap " << softcap;
      }
    }
  }
}

TEST(LinearCrossEntropy, IsThatOfTheWholeInEveryShape) {
  const std::vector<std::vector<int64_t>> batches = {{}, {1}, {5}, {2, 3}, {2, 1, 4}, {257}};
  for (const std::vector<int64_t>& batch : batches) {
    for (const int64_t width : {1, 3, 256}) {
      const Inputs in = random_inputs(batch, width, 300);
      EXPECT_LT(distance(sliced(in, 64), whole(in)), kCloseness)
          << batch.size() << " dimensions, width " << width;
    }
  }
}

// A likely target's loss is a small difference of large numbers.
TEST(LinearCrossEntropy, OfTokensThatAreAlmostCertain) {
  Inputs in = random_inputs({32}, 16, 200, 30);
  in.targets = at::linear(in.hidden, in.weight).argmax(-1);
  const Inputs fp64 = in.to(at::kDouble);
  const Outcome exact = whole(fp64);
  for (const int64_t slice : kSlices) {
    EXPECT_LT(distance(sliced(in, slice).loss, exact.loss),
              2 * distance(whole(in).loss, exact.loss) + kCloseness)
        << slice;
    EXPECT_LT(distance(sliced(in, slice).to_weight, exact.to_weight), 2e-5) << slice;
  }
}

// The control: slices that overlap by a row, as they would if a boundary were wrong.
TEST(LinearCrossEntropy, ARowThatCountsTwiceIsFound) {
  const Inputs in = random_inputs({33}, 24, 513);
  Inputs wrong = in.to(at::kFloat);
  wrong.weight =
      at::cat({in.weight.narrow(0, 0, 64), in.weight.narrow(0, 63, 450)}).detach().requires_grad_();
  wrong.targets = at::where(in.targets >= 64, in.targets + 1, in.targets);
  EXPECT_GT(distance(sliced(wrong, 64).loss, whole(in).loss), 10 * kCloseness);
  EXPECT_GT(distance(sliced(wrong, 64).to_hidden, whole(in).to_hidden), 10 * kCloseness);
}

TEST(LinearCrossEntropy, HasTheSameBitsEachTime) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Inputs in = random_inputs({4, 64}, 96, 3000).to(type);
    const Outcome first = sliced(in, 700);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(sliced(in, 700), first));
    EXPECT_FALSE(same_bits(sliced(in, 7), first));  // the comparison can fail
  }
}

TEST(LinearCrossEntropy, In16BitsIsNoFurtherFromTheTruthThanTheWhole) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const double softcap : {0.0, 5.0}) {
      const Inputs in = random_inputs({256}, 128, 4000).to(type);
      const Outcome exact = whole(in.to(at::kDouble), softcap);
      const Outcome torchs = whole(in, softcap);
      for (const int64_t slice : {100, 1024, 4000}) {
        const Outcome ours = sliced(in, slice, softcap);
        const auto rms = [](const at::Tensor& a, const at::Tensor& b) {
          return (a.to(at::kDouble) - b).square().mean().sqrt().item<double>();
        };
        const double loss = rms(ours.loss, exact.loss) / rms(torchs.loss, exact.loss),
                     to_hidden = rms(ours.to_hidden, exact.to_hidden) /
                                 rms(torchs.to_hidden, exact.to_hidden),
                     to_weight = rms(ours.to_weight, exact.to_weight) /
                                 rms(torchs.to_weight, exact.to_weight);
        std::printf(
            "%s, softcap %g, %ld rows: error over torch's: loss %.3f, hidden %.3f, weight "
            "%.3f\n",
            c10::toString(type), softcap, static_cast<long>(slice), loss, to_hidden, to_weight);
        EXPECT_LT(to_hidden, 1.05);
        EXPECT_LT(to_weight, 1.05);
        EXPECT_LT(distance(ours.loss, torchs.loss), kCloseness);
      }
    }
  }
}

// ---- what does not count ----

TEST(LinearCrossEntropy, WithoutATargetThatCountsIsNan) {
  Inputs in = random_inputs({6}, 8, 40);
  in.targets.fill_(kIgnoredTarget);
  const Outcome ours = sliced(in, 7);
  EXPECT_TRUE(std::isnan(ours.loss.item<double>()));
  EXPECT_TRUE(ours.to_hidden.equal(whole(in).to_hidden));
  EXPECT_TRUE(ours.to_weight.equal(whole(in).to_weight));
}

TEST(LinearCrossEntropy, OfNoTokensIsNan) {
  for (const int64_t slice : {0, 7}) {
    const Inputs in = random_inputs({2, 0}, 8, 40);
    const Inputs own = in.to(at::kFloat);
    const at::Tensor loss = in_slices(own, slice);
    EXPECT_TRUE(std::isnan(loss.item<double>()));
    loss.backward();
    EXPECT_TRUE(own.weight.grad().equal(at::zeros({40, 8})));
    EXPECT_EQ(own.hidden.grad().numel(), 0);
  }
}

TEST(LinearCrossEntropy, InfinitiesAndNansAreThoseOfTheWhole) {
  for (const double value : {double{INFINITY}, double{-INFINITY}, double{NAN}, 1e38}) {
    Inputs in = random_inputs({4}, 3, 20);
    {
      const at::NoGradGuard no_grad;
      in.hidden.abs_();
      in.weight.narrow(0, 5, 10).fill_(value);
      in.targets.fill_(2);
    }
    for (const int64_t slice : {1, 4, 20}) {
      EXPECT_TRUE(at::allclose(sliced(in, slice).loss, whole(in).loss, 1e-6, 0, true))
          << value << ", " << slice << ": " << sliced(in, slice).loss.item<double>();
    }
  }
}

// ---- what autograd asks for ----

TEST(LinearCrossEntropy, GivesOnlyTheGradientsThatAreAskedFor) {
  const Inputs in = random_inputs({9}, 16, 60);
  const Outcome both = sliced(in, 13);
  for (const bool of_hidden : {false, true}) {
    Inputs one = in.to(at::kFloat);
    one.hidden.requires_grad_(of_hidden);
    one.weight.requires_grad_(!of_hidden);
    in_slices(one, 13).mul(3).backward();
    EXPECT_EQ(one.hidden.grad().defined(), of_hidden);
    EXPECT_EQ(one.weight.grad().defined(), !of_hidden);
    EXPECT_TRUE(of_hidden ? one.hidden.grad().equal(both.to_hidden)
                          : one.weight.grad().equal(both.to_weight));
  }
  const Inputs own = in.to(at::kFloat);
  const at::Tensor alone = torch::autograd::grad({in_slices(own, 13) * 3}, {own.weight})[0];
  EXPECT_TRUE(alone.equal(both.to_weight));
}

TEST(LinearCrossEntropy, WithoutGradientsIsTheSame) {
  const Inputs in = random_inputs({9}, 16, 60);
  const at::Tensor expected = sliced(in, 13).loss;
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(in_slices(in, 13).equal(expected));
    EXPECT_FALSE(in_slices(in, 13).requires_grad());
  }
  const c10::InferenceMode inference;
  EXPECT_TRUE(in_slices(in, 13).equal(expected));
  EXPECT_TRUE(in_slices({in.hidden * 1, in.weight * 1, in.targets * 1}, 13).equal(expected));
}

TEST(LinearCrossEntropy, OfTensorsThatAreNotContiguous) {
  const Inputs in = random_inputs({4, 6}, 16, 60);
  Inputs strided{
      at::empty({6, 16, 4}).permute({2, 0, 1}).copy_(in.hidden.detach()).requires_grad_(),
      at::empty({16, 60}).t().copy_(in.weight.detach()).requires_grad_(),
      at::empty({6, 4}, at::kLong).t().copy_(in.targets)};
  in_slices(strided, 13).mul(3).backward();
  const Outcome plain = whole(in);
  EXPECT_LT(distance(strided.hidden.grad(), plain.to_hidden), kCloseness);
  EXPECT_LT(distance(strided.weight.grad(), plain.to_weight), kCloseness);
}

TEST(LinearCrossEntropy, AWeightThatIsUsedTwiceGetsTheSum) {
  const Inputs in = random_inputs({20}, 16, 60);
  const auto gradient = [&](bool slices) {
    const Inputs own = in.to(at::kFloat);
    const Inputs tied{at::embedding(own.weight, in.targets) * own.hidden, own.weight,
                      in.targets.roll(1)};
    (slices ? in_slices(tied, 13) : of_the_whole(tied)).backward();
    return own.weight.grad();
  };
  EXPECT_LT(distance(gradient(true), gradient(false)), kCloseness);
}

TEST(LinearCrossEntropy, BackwardMayBeTwiceWhereTheGraphIsRetained) {
  const Inputs in = random_inputs({9}, 16, 60).to(at::kFloat);
  const at::Tensor loss = in_slices(in, 13);
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = in.weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(in.weight.grad().equal(once * 2));
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(LinearCrossEntropy, AWeightThatIsWrittenBeforeBackwardIsRefused) {
  const Inputs in = random_inputs({9}, 16, 60).to(at::kFloat);
  const at::Tensor loss = in_slices(in, 13);
  {
    const at::NoGradGuard no_grad;
    in.weight.add_(1);
  }
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(LinearCrossEntropy, InACheckpointedRegionHasTheSameBits) {
  const Inputs in = random_inputs({4, 6}, 16, 60);
  const auto in_a_region = [](const Inputs& own) {
    return checkpoint(
        [&](const at::Tensor& hidden) {
          return in_slices({hidden, own.weight, own.targets}, 13);
        },
        own.hidden);
  };
  EXPECT_TRUE(same_bits(outcome_of(in, in_a_region), sliced(in, 13)));
}

// Casts FP32 to BF16 while it lives.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

TEST(LinearCrossEntropy, UnderAutocastComputesInItsType) {
  const Inputs in = random_inputs({64}, 16, 300);
  const Outcome bf16 = sliced(in.to(at::kBFloat16), 50);
  for (const int64_t slice : {0, 50}) {
    for (const bool backward_too : {false, true}) {
      const Inputs own = in.to(at::kFloat);
      at::Tensor loss;
      {
        const Autocast autocast;
        loss = in_slices(own, slice) * 3;
        if (backward_too) loss.backward();
      }
      if (!backward_too) loss.backward();
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_LT(distance(loss, bf16.loss * 3), kCloseness);
      EXPECT_EQ(own.weight.grad().scalar_type(), at::kFloat);
      if (slice == 0) continue;
      EXPECT_TRUE(own.hidden.grad().equal(bf16.to_hidden.to(at::kFloat)));
      EXPECT_TRUE(own.weight.grad().equal(bf16.to_weight.to(at::kFloat)));
    }
  }
  const Autocast autocast;  // leaves FP64 alone, as torch's
  EXPECT_EQ(in_slices(in.to(at::kDouble), 50).scalar_type(), at::kDouble);
}

TEST(LinearCrossEntropy, SmallLogitsAreTorchsOwn) {
  const Inputs in = random_inputs({64}, 16, 300);
  EXPECT_TRUE(same_bits(sliced(in, 0), whole(in)));
  EXPECT_TRUE(same_bits(sliced(in, 0, 3), whole(in, 3)));
}

// ---- memory ----

struct Peaks {
  uint64_t forward, step;
};

// Beside inputs, and the weight's gradient.
Peaks peaks(int64_t tokens, int64_t vocabulary, int64_t slice, bool of_weight,
            bool in_one = false) {
  const Inputs in = random_inputs({tokens}, 32, vocabulary);
  in.weight.requires_grad_(of_weight);
  CountedMemory memory({c10::kCPU});
  const at::Tensor loss = in_one ? of_the_whole(in) : in_slices(in, slice);
  const uint64_t forward = memory.count().peak_bytes();
  loss.backward();
  return {forward, memory.count().peak_bytes() - (of_weight ? in.weight.nbytes() : 0)};
}

TEST(LinearCrossEntropy, ItsMemoryGrowsWithTheSliceNotWithTheVocabulary) {
  constexpr int64_t kTokens = 256;
  for (const bool of_weight : {false, true}) {
    const Peaks few = peaks(kTokens, 4096, 512, of_weight);
    const Peaks many = peaks(kTokens, 32768, 512, of_weight);
    EXPECT_NEAR(static_cast<double>(many.step), static_cast<double>(few.step), 8192);
    EXPECT_NEAR(static_cast<double>(many.forward), static_cast<double>(few.forward), 8192);
    const auto slice_bytes = static_cast<double>(kTokens * 512 * sizeof(float));
    EXPECT_LT(static_cast<double>(many.step), 1.5 * slice_bytes);
    const Peaks wider = peaks(kTokens, 32768, 1024, of_weight);
    EXPECT_NEAR(static_cast<double>(wider.step - many.step), slice_bytes, 0.2 * slice_bytes);
    // The control: the whole.
    EXPECT_GT(peaks(kTokens, 32768, 0, of_weight, true).step, 60 * many.step);
  }
}

TEST(LinearCrossEntropy, ChoosesSlicesOfWhatLogitsMayTake) {
  constexpr int64_t kTokens = 4096, kVocabulary = 16384;  // 256 MiB in FP32
  const Peaks chosen = peaks(kTokens, kVocabulary, 0, true);
  EXPECT_GT(chosen.step, static_cast<uint64_t>(kLogitsBytes));
  EXPECT_LT(chosen.step, static_cast<uint64_t>(kLogitsBytes) * 5 / 4);
}

// Prints what bench/RESULTS.md says of it; too long for every run. Processor time of one thread.
TEST(LinearCrossEntropy, DISABLED_TimeAndMemoryBesideTheWhole) {
  at::set_num_threads(1);
  const auto seconds = [](const Inputs& in, bool slices) {
    const std::clock_t begin = std::clock();
    (slices ? in_slices(in, 0) : of_the_whole(in)).backward();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {256, 1024}) {
      const Inputs in = random_inputs({1024}, width, 32000).to(type);
      std::vector<double> ratios;
      for (int round = 0; round < 3; ++round)
        ratios.push_back(seconds(in, true) / seconds(in, false));
      std::sort(ratios.begin(), ratios.end());
      const auto peak = [&](bool slices) {
        CountedMemory memory({c10::kCPU});
        const Inputs own = in.to(type);
        seconds(own, slices);
        const size_t beside = 2 * own.weight.nbytes() + 2 * own.hidden.nbytes();
        return static_cast<double>(memory.count().peak_bytes() - beside) / (1 << 20);
      };
      std::printf("%s, width %ld: time %.2f (%.2f to %.2f) of the whole's, %.0f MiB for %.0f\n",
                  c10::toString(type), static_cast<long>(width), ratios[1], ratios.front(),
                  ratios.back(), peak(true), peak(false));
      std::fflush(stdout);
    }
  }
}

// ---- what is refused ----

std::string refusal(const std::function<void()>& call) {
  return refusal_of(thrown(call), Code::kInvalidArgument);
}

TEST(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  const Inputs in = random_inputs({2, 3}, 8, 40);
  const auto refused = [](const Inputs& asked, int64_t slice = 4, double softcap = 0) {
    return refusal([&] { in_slices(asked, slice, softcap); });
  };
  EXPECT_THAT(refused({in.hidden, at::Tensor(), in.targets}), HasSubstr("undefined"));
  EXPECT_THAT(refused({in.hidden, at::rand({40, 9}), in.targets}),
              HasSubstr("hidden is [2, 3, 8] of Float on cpu and weight [40, 9]"));
  EXPECT_THAT(refused({in.hidden, at::rand({8}), in.targets}), HasSubstr("[vocabulary, width]"));
  EXPECT_THAT(refused({in.hidden, at::rand({0, 8}), in.targets}), HasSubstr("weight [0, 8]"));
  EXPECT_THAT(refused({at::rand({}), in.weight, in.targets}), HasSubstr("hidden is []"));
  EXPECT_THAT(refused({in.hidden, in.weight.to(at::kHalf), in.targets}), HasSubstr("of Half"));
  EXPECT_THAT(refused({in.hidden.to(at::kLong), in.weight.to(at::kLong), in.targets}),
              HasSubstr("one floating type"));
  EXPECT_THAT(refused({in.hidden, in.weight, in.targets.reshape({6})}),
              HasSubstr("targets are [6] of Long"));
  EXPECT_THAT(refused({in.hidden, in.weight, in.targets.to(at::kInt)}), HasSubstr("of Int"));
  EXPECT_THAT(refused(in, -1), HasSubstr("slice is -1"));
  EXPECT_THAT(refused(in, 4, -2), HasSubstr("softcap is -2"));
  EXPECT_THAT(refused(in, 4, NAN), HasSubstr("softcap is nan"));
  EXPECT_THAT(refused(in, 4, INFINITY), HasSubstr("softcap is inf"));
}

TEST(LinearCrossEntropy, RefusesATargetOutsideOfTheVocabulary) {
  const Inputs in = random_inputs({2, 3}, 8, 40);
  for (const int64_t target : {40l, -1l, -99l, int64_t{1} << 40}) {
    for (const int64_t slice : {0, 4}) {
      Inputs wrong = in;
      wrong.targets = in.targets.clone();
      wrong.targets[1][2] = target;
      EXPECT_THAT(refusal([&] { in_slices(wrong, slice); }),
                  AllOf(HasSubstr(std::to_string(target)), HasSubstr("40 tokens")));
    }
  }
}

TEST(LinearCrossEntropy, RefusesToGiveGradientsOfGradients) {
  const Inputs in = random_inputs({9}, 16, 60).to(at::kFloat);
  EXPECT_THAT(refusal([&] {
                in_slices(in, 13).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              HasSubstr("create_graph"));
}

}  // namespace
}  // namespace elixir::test
