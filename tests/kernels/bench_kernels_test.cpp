// bench/kernels: with a GPU the fields that scripts read, and sane figures; without one, the code.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace elixir {
namespace {

struct Ended {
  int exit_code;
  std::string output;
};

Ended run_bench(const std::string& arguments) {
  FILE* const pipe = ::popen((std::string(ELIXIR_BENCH_KERNELS) + " " + arguments).c_str(), "r");
  Ended ended{-1, {}};
  std::array<char, 4096> buffer;
  while (size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    ended.output.append(buffer.data(), bytes);
  }
  ended.exit_code = WEXITSTATUS(::pclose(pipe));
  return ended;
}

TEST(BenchKernels, JsonHasTheFieldsOrThereIsNoGpu) {
  const Ended ended = run_bench("--json --numel 33554433 --rounds 5 2>&1");
  if (ended.exit_code == 77) {
    ASSERT_EQ(std::getenv("ELIXIR_REQUIRE_GPU"), nullptr) << ended.output;
    EXPECT_THAT(ended.output, testing::HasSubstr("no GPU, nothing is measured: "));
    GTEST_SKIP() << ended.output;
  }
  ASSERT_EQ(ended.exit_code, 0) << ended.output;
  const nlohmann::json report = nlohmann::json::parse(ended.output);
  const double copy_gb_s = report.at("copy_gb_s");
  EXPECT_GT(copy_gb_s, 0);
  std::set<std::string> measured;
  for (const nlohmann::json& result : report.at("results")) {
    measured.insert(result.at("kernel").get<std::string>() + " " +
                    result.at("dtype").get<std::string>());
    const double fraction = result.at("fraction");
    EXPECT_NEAR(fraction * copy_gb_s, result.at("gb_s").get<double>(), 1e-6 * copy_gb_s);
    EXPECT_GT(fraction, 0.1) << result;
    EXPECT_LT(fraction, 3) << result;
  }
  EXPECT_THAT(measured,
              testing::IsSupersetOf({"adam bf16", "adam fp16", "adam fp32", "squared_norm bf16"}));
}

TEST(BenchKernels, BadArgumentsAreRefused) {
  EXPECT_EQ(run_bench("--numel 0 2>/dev/null").exit_code, 2);
  EXPECT_EQ(run_bench("--nonsense 2>/dev/null").exit_code, 2);
  EXPECT_EQ(run_bench("--help").exit_code, 0);
}

}  // namespace
}  // namespace elixir
