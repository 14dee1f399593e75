// bench/kernels: with a GPU the fields that scripts read, and sane figures; without one, the code.

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/optim_cpu/run_bench.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(BenchKernels, JsonHasTheFieldsOrThereIsNoGpu) {
  const BenchRun ended = run_bench(ELIXIR_BENCH_KERNELS " --json --numel 33554433 --rounds 5 2>&1");
  if (ended.exit_code == 77) {
    ASSERT_EQ(std::getenv("ELIXIR_REQUIRE_GPU"), nullptr) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("no GPU, nothing is measured: "));
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
  EXPECT_EQ(run_bench(ELIXIR_BENCH_KERNELS " --numel 0 2>/dev/null").exit_code, 2);
  EXPECT_EQ(run_bench(ELIXIR_BENCH_KERNELS " --nonsense 2>/dev/null").exit_code, 2);
  EXPECT_EQ(run_bench(ELIXIR_BENCH_KERNELS " --help").exit_code, 0);
}

}  // namespace
}  // namespace elixir
