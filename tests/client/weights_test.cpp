// Initial values, drawn and loaded by several threads.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <xxhash.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/throw_error.h"
#include "client/tensors/meta_init.h"
#include "client/train/compute_alone.h"
#include "models/decoder.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/models/built.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

using ::testing::_;

const planner::TransformerConfig kTiny = tiny_gpt2_config({.vocabulary = 300, .layers = 4});

class Weights : public WithElixird {};

std::shared_ptr<Decoder> tiny_gpt2() { return built(kTiny, {.seed = 5}); }

std::shared_ptr<Decoder> tiny_gpt2_without_memory() {
  const MetaInit without_memory;
  return tiny_gpt2();
}

// Values by generators of the operators' own, by torch's default generator through operators that
// take none, and by both in one parameter.
struct Mixed : torch::nn::Module {
  Mixed() {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 12; ++i) {
      at::Tensor weight = i % 3 == 0 ? at::randn({40, 50}) : at::empty({40, 50});
      if (i % 3 != 0) weight.normal_(0, 0.02);
      if (i % 3 == 2) weight.add_(at::rand({40, 50}), 1e-4);
      register_parameter("weight" + std::to_string(i), weight);
    }
  }
};

std::unique_ptr<Mixed> mixed_without_memory() {
  at::manual_seed(11);
  const MetaInit without_memory;
  return std::make_unique<Mixed>();
}

// The hash of client/train/weights.h, of values drawn one after the other on this thread.
uint64_t serial_xxh64(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& item : model.named_parameters()) {
    by_name[item.key()] = materialise(item.value()).to(at::kFloat).contiguous();
  }
  XXH64_state_t* const hash = XXH64_createState();
  XXH64_reset(hash, 0);
  for (const auto& [name, values] : by_name) {
    XXH64_update(hash, values.const_data_ptr(), values.nbytes());
  }
  const uint64_t digest = XXH64_digest(hash);
  XXH64_freeState(hash);
  return digest;
}

Options runtime_options(uint32_t threads, uint64_t chunk_numel) {
  Options runtime;
  runtime.environment = LaunchEnvironment{};
  static int jobs = 0;
  runtime.environment->job = "weights-" + std::to_string(jobs++);
  runtime.layout.chunk_numel = chunk_numel;
  runtime.load_threads = threads;
  return runtime;
}

template <typename Build>
void expect_serial_bits(const Build& build, uint64_t chunk_numel) {
  const auto reference = build();
  const uint64_t expected = serial_xxh64(*reference);
  for (const uint32_t threads : {1u, 2u, 3u, 7u}) {
    const auto model = build();
    AdamW optimizer(*model, {}, runtime_options(threads, chunk_numel));
    EXPECT_EQ(optimizer.weights_xxh64(), expected) << threads << " threads";
  }
}

TEST_F(Weights, AreThoseOfOneThreadWhateverTheNumberOfThreads) {
  expect_serial_bits(tiny_gpt2_without_memory, 0);
  expect_serial_bits(tiny_gpt2_without_memory, 300 * 32);  // many chunks
  expect_serial_bits(tiny_gpt2, 0);
  for (int round = 0; round < 5; ++round) expect_serial_bits(mixed_without_memory, 4096);
}

// The negative control of the test above: values that depend on who draws first differ.
TEST_F(Weights, AnotherSeedGivesOthers) {
  const auto model = mixed_without_memory();
  at::manual_seed(12);
  const MetaInit without_memory;
  Mixed other;
  EXPECT_NE(serial_xxh64(*model), serial_xxh64(other));
}

TEST_F(Weights, WhatIsLeftOutIsAskedOnceForEachParameter) {
  const auto model = tiny_gpt2();
  std::map<std::string, int> asked;
  Options runtime = runtime_options(1, 0);
  runtime.leave_out = [&asked](const std::string& name, const at::Tensor&) {
    ++asked[name];
    return name.ends_with("bias");
  };
  AdamW optimizer(*model, {}, runtime);
  EXPECT_EQ(asked.size(), tensors_of(*model).parameters.size());
  EXPECT_THAT(asked, Each(Pair(_, 1)));
}

TEST_F(Weights, AValueThatCannotBeDrawnIsSaidByTheThreadThatAsked) {
  at::Tensor source = at::ones({40, 50});
  struct Copied : torch::nn::Module {
    explicit Copied(const at::Tensor& from) {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 6; ++i) {
        at::Tensor weight = at::empty({40, 50});
        weight.copy_(from);
        register_parameter("weight" + std::to_string(i), weight);
      }
    }
  };
  const auto model = [&] {
    const MetaInit without_memory;
    return std::make_unique<Copied>(source);
  }();
  source.add_(1);
  try {
    AdamW optimizer(*model, {}, runtime_options(2, 4096));
    FAIL() << "no error";
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("has been written to since"));
  }
}

TEST(ComputeAlone, HoldsForTheThreadThatAskedAlone) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  int within = 0, beside = 0;
  std::thread([&] {
    compute_alone();
    within = at::get_num_threads();
  }).join();
  std::thread([&] { beside = at::get_num_threads(); }).join();
  EXPECT_EQ(within, 1);
  EXPECT_EQ(beside, 3);
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace elixir::test
