// What evaluation between steps costs the steps: the time of step() after passes without gradients
// over every chunk, against that without them, in turn, in one run; and whether memory grows.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/torch_device/cuda_library.h"

namespace elixir {
namespace {

constexpr int64_t kNumel = 128;  // of a parameter, and of a chunk
constexpr double kGreatestRatio = 1.05;
constexpr double kGreatestGrowthMib = 4;

struct Arguments {
  uint32_t chunks = 10'000, passes = 20, rounds = 7;
  bool json = false, check = false;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096 / (1 << 20);
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments) : arguments_(arguments) {
    ModelTensors model;
    for (uint32_t i = 0; i < arguments.chunks; ++i) {
      weights_.push_back(at::full({kNumel}, 0.01 * (i % 7)).requires_grad_());
      model.parameters.push_back({"p" + std::to_string(i), weights_.back()});
    }
    Options options;
    options.layout = {.chunk_numel = kNumel, .rcache_blocks = arguments.chunks / 4};
    optimizer_ = std::make_unique<AdamW>(model, AdamWOptions{}, options);
  }

  double step_ms(bool evaluates) {
    if (evaluates) {
      for (uint32_t pass = 0; pass < arguments_.passes; ++pass) evaluate();
    }
    optimizer_->zero_grad();
    // Backward goes by pieces, so that its graph is no deeper than a layer's.
    for (const at::Tensor& weight : weights_) (weight * weight).sum().backward();
    optimizer_->synchronize();
    const int64_t start_ns = monotonic_ns();
    optimizer_->step();
    const double ms = seconds_since(start_ns) * 1e3;
    optimizer_->synchronize();
    return ms;
  }

 private:
  void evaluate() {
    const at::NoGradGuard no_grad;
    double sum = 0;
    for (const at::Tensor& weight : weights_) sum += weight.sum().item<double>();
    if (sum == 1) std::cout << "";  // it is used
  }

  const Arguments arguments_;
  std::vector<at::Tensor> weights_;
  std::unique_ptr<AdamW> optimizer_;
};

int run(const Arguments& arguments) {
  at::set_num_threads(1);
  Bench bench(arguments);
  std::vector<double> plain, after;
  for (int i = 0; i < 2; ++i) {
    bench.step_ms(false);
    bench.step_ms(true);
  }
  const double before_mib = resident_mib();
  for (uint32_t i = 0; i < arguments.rounds; ++i) {
    plain.push_back(bench.step_ms(false));
    after.push_back(bench.step_ms(true));
  }
  const double growth_mib = resident_mib() - before_mib;
  const double ratio = median(after) / median(plain);
  if (arguments.json) {
    std::cout << nlohmann::json{{"chunks", arguments.chunks},
                                {"passes", arguments.passes},
                                {"step_ms", median(plain)},
                                {"step_after_evaluation_ms", median(after)},
                                {"ratio", ratio},
                                {"growth_mib", growth_mib}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << fmt::format(
        "step() over {} chunks: {:.2f} ms, after {} passes of evaluation {:.2f} ms: {:.3f} (limit "
        "{:.2f}); memory grew by {:.1f} MiB in {} rounds (limit {:.0f})\n",
        arguments.chunks, median(plain), arguments.passes, median(after), ratio, kGreatestRatio,
        growth_mib, arguments.rounds, kGreatestGrowthMib);
  }
  const bool holds = ratio <= kGreatestRatio && growth_mib <= kGreatestGrowthMib;
  return arguments.check && !holds ? 1 : 0;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  CLI::App app("What evaluation between steps costs step()", "evaluation");
  elixir::init_cli(app);
  elixir::Arguments arguments;
  app.add_option("--chunks", arguments.chunks, "of one parameter each")
      ->check(CLI::Range(8u, 1'000'000u));
  app.add_option("--passes", arguments.passes, "of evaluation before a step")
      ->check(CLI::Range(1u, 1000u));
  app.add_option("--rounds", arguments.rounds, "of two steps each")->check(CLI::Range(1u, 1000u));
  app.add_flag("--json", arguments.json,
               "one JSON object: step_ms, step_after_evaluation_ms, ratio, growth_mib");
  app.add_flag("--check", arguments.check, "exit with 1 where a limit is missed");
  if (const int exit_code = elixir::parse_cli(app, argc, argv); exit_code >= 0) return exit_code;
  try {
    elixir::throw_if_error(elixir::prepare_cuda(c10::DeviceType::CPU));
    return elixir::run(arguments);
  } catch (const elixir::Error& failure) {
    return elixir::report_failure(app, elixir::Status(failure.code(), failure.what()));
  }
}
