// What fuzzing found worth keeping, through its targets once more: the inputs of tests/fuzz/corpus
// in each build, without libFuzzer; as they are, and damaged at random. A target that fails aborts
// (ELIXIR_CHECK).
//
//   ELIXIR_FUZZ_SEED    another sequence; with ELIXIR_EVERY_CASE a new one each time (it is
//   printed) ELIXIR_FUZZ_ROUNDS  more or fewer damaged inputs a target

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/support/every_case.h"

// CMakeLists.txt names LLVMFuzzerTestOneInput of each target so.
#define ELIXIR_FUZZ_TARGETS(of)                                                                    \
  of(config) of(details) of(machine) of(make_plan) of(manifest) of(message) of(model_config)       \
      of(parameter_table) of(pickle) of(plan) of(profile) of(rendezvous) of(safetensors) of(shape) \
          of(status) of(stored_folder) of(stored_model) of(watch_frame)
#define ELIXIR_DECLARE(name) extern "C" int fuzz_##name(const uint8_t* data, size_t size);
ELIXIR_FUZZ_TARGETS(ELIXIR_DECLARE)

namespace elixir::fuzz {
namespace {

struct Target {
  const char* name;
  int (*run)(const uint8_t* data, size_t size);
};
#define ELIXIR_LIST(name) {#name, fuzz_##name},
constexpr Target kTargets[] = {ELIXIR_FUZZ_TARGETS(ELIXIR_LIST)};

void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

using Bytes = std::vector<char>;

class Corpus : public ::testing::TestWithParam<Target> {
 protected:
  Corpus() {
    const std::filesystem::path folder =
        std::filesystem::path(ELIXIR_FUZZ_CORPUS) / GetParam().name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      inputs_.push_back(
          {entry.path().filename().string(), Bytes(std::istreambuf_iterator<char>(file), {})});
    }
    std::sort(inputs_.begin(), inputs_.end());
  }
  static void expect_promises(const Bytes& bytes) {
    EXPECT_EQ(GetParam().run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
  }

  std::vector<std::pair<std::string, Bytes>> inputs_;  // by name
};

TEST_P(Corpus, KeepsThePromisesOfTheDecoder) {
  for (const auto& [name, bytes] : inputs_) {
    std::printf("%s\n", name.c_str());
    std::fflush(stdout);  // the last one is the one that aborted
    expect_promises(bytes);
  }
  EXPECT_FALSE(inputs_.empty());
}

// Flips bits, overwrites words with odd values, cuts, extends or rotates.
void damage(Bytes& bytes, std::mt19937_64& random) {
  constexpr uint64_t kOdd[] = {0,          1,     0x7f,       0xff, 0xffff, 0x7fffffff,
                               0xffffffff, ~0ull, 1ull << 63, 127,  128,    1024};
  const auto below = [&random](size_t limit) { return random() % limit; };
  for (uint64_t times = 1 + below(4); times > 0; --times) {
    const uint64_t kind = below(5);
    if (bytes.empty() || kind == 0) {
      for (uint64_t more = below(17); more > 0; --more) {
        bytes.push_back(static_cast<char>(random()));
      }
    } else if (kind == 1) {
      bytes.resize(below(bytes.size() + 1));
    } else if (kind == 2) {
      const size_t width = size_t{1} << below(4);
      const uint64_t value = kOdd[below(std::size(kOdd))];
      if (bytes.size() >= width) {
        std::memcpy(&bytes[below(bytes.size() - width + 1)], &value, width);
      }
    } else if (kind == 3) {
      std::rotate(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(below(bytes.size())),
                  bytes.end());
    } else {
      bytes[below(bytes.size())] ^= static_cast<char>(1u << below(8));
    }
  }
}

TEST_P(Corpus, KeepsThePromisesOfTheDecoderWhateverTheDamage) {
  const bool nightly = every_case();
  const uint64_t seed = number_setting("ELIXIR_FUZZ_SEED", nightly ? std::random_device()() : 1);
  const uint64_t rounds = number_setting("ELIXIR_FUZZ_ROUNDS", nightly ? 50'000 : 2'000);
  std::printf("ELIXIR_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  for (uint64_t round = 0; round < rounds; ++round) {
    Bytes bytes = inputs_[random() % inputs_.size()].second;
    damage(bytes, random);
    expect_promises(bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, ::testing::ValuesIn(kTargets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace elixir::fuzz
