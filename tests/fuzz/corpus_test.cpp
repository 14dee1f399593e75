// What fuzzing found worth keeping, through its targets once more: the inputs of tests/fuzz/corpus
// in each build, without libFuzzer. A target that fails aborts (ELIXIR_CHECK).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

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

class Corpus : public ::testing::TestWithParam<Target> {};

TEST_P(Corpus, KeepsThePromisesOfTheDecoder) {
  const std::filesystem::path folder = std::filesystem::path(ELIXIR_FUZZ_CORPUS) / GetParam().name;
  size_t inputs = 0;
  for (const std::filesystem::directory_entry& entry :
       std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    std::printf("%s\n", entry.path().filename().c_str());
    std::fflush(stdout);  // the last one is the one that aborted
    EXPECT_EQ(GetParam().run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
    ++inputs;
  }
  EXPECT_GT(inputs, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, ::testing::ValuesIn(kTargets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace elixir::fuzz
