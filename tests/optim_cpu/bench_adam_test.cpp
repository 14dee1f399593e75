// bench/adam --json on a working set that takes seconds: the fields that scripts read, and sane
// figures.

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/optim_cpu/run_bench.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(BenchAdam, JsonHasTheFieldsAndSaneFractions) {
  const BenchRun ended = run_bench(
      ELIXIR_BENCH_ADAM " --json --processor-time --out-of-place --numel 8388608 --rounds 9");
  ASSERT_EQ(ended.exit_code, 0);
  const nlohmann::json report = nlohmann::json::parse(ended.output);
  EXPECT_GT(report.at("inplace_gb_s").get<double>(), 0);
  std::set<std::string> dtypes, isas;
  for (const nlohmann::json& result : report.at("results")) {
    dtypes.insert(result.at("dtype"));
    isas.insert(result.at("isa"));
    const std::string dtype = result.at("dtype");
    EXPECT_EQ(result.at("bytes_per_param"), dtype == "bf16" ? 26 : 28);
    EXPECT_GE(result.at("threads"), 1);
    const double fraction = result.at("fraction");
    EXPECT_NEAR(fraction,
                result.at("gparam_s").get<double>() * result.at("bytes_per_param").get<double>() /
                    result.at("inplace_gb_s").get<double>(),
                1e-6);
    EXPECT_LT(fraction, 1.5) << result;
    EXPECT_GT(result.at("out_of_place"), 0.1) << result;
    EXPECT_LT(result.at("out_of_place"), 10) << result;
    EXPECT_GT(fraction, result.at("isa") == "scalar" ? 0.01 : 0.2) << result;
  }
  EXPECT_THAT(dtypes, UnorderedElementsAre("bf16", "fp16", "fp32"));
  EXPECT_TRUE(isas.contains("scalar"));
}

TEST(BenchAdam, BadArgumentsAreRefused) {
  EXPECT_EQ(run_bench(ELIXIR_BENCH_ADAM " --isa sse 2>/dev/null").exit_code, 2);
  EXPECT_EQ(run_bench(ELIXIR_BENCH_ADAM " --dtype fp8 2>/dev/null").exit_code, 2);
  EXPECT_EQ(run_bench(ELIXIR_BENCH_ADAM " --help").exit_code, 0);
}

}  // namespace
}  // namespace elixir
