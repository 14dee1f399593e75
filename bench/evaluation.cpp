// Measures how much evaluation costs steps.
//
// Between steps: it compares the time of step() after passes without gradients over every chunk
// with the time without such passes, in turn, in one run. It also checks whether memory grows.
//
// Beside steps (--threads): it measures the longest step() while threads evaluate, for Elixir and
// for torch's optimizer.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/inherited.h"
#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/torch_device/cuda_library.h"

namespace elixir {
namespace {

constexpr int64_t kNumel = 128;  // elements of a parameter, and of a chunk
constexpr double kGreatestRatio = 1.05;
constexpr double kGreatestGrowthMib = 4;

struct Arguments {
  uint32_t chunks = 10'000, passes = 20, rounds = 7;
  uint32_t threads = 0, steps = 200;  // that evaluate, and steps of the training beside them
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
    // Backward runs parameter by parameter, so that its graph is no deeper than a layer's.
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
    if (sum == 1) std::cout << "";  // uses the sum
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

// ---- evaluation beside steps ----

constexpr int64_t kSide = 64;
constexpr int kLayers = 24;

std::vector<at::Tensor> layers() {
  at::manual_seed(3);
  std::vector<at::Tensor> weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back((at::randn({kSide, kSide}) * 0.1).requires_grad_());
  }
  return weights;
}

at::Tensor pass(const std::vector<at::Tensor>& weights) {
  at::Tensor x = at::ones({8, kSide});
  for (const at::Tensor& weight : weights) x = at::tanh(x.mm(weight));
  return x.square().mean();
}

struct Beside {
  double total_s = 0, median_ms = 0, worst_ms = 0;  // the last two are of step()
  uint64_t passes = 0;                              // of all threads
};

// Times `step` of a training while threads run passes without gradients.
template <typename ZeroGrad, typename Step>
Beside train_beside(const std::vector<at::Tensor>& weights, const Arguments& arguments,
                    ZeroGrad zero_grad, Step step) {
  std::atomic<bool> over = false;
  std::atomic<uint64_t> passes = 0;
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < arguments.threads; ++i) {
    threads.emplace_back([&] {
      const at::NoGradGuard no_grad;
      while (!over) {
        (void)pass(weights).item<double>();
        ++passes;
      }
    });
  }
  std::vector<double> step_ms;
  const int64_t begin_ns = monotonic_ns();
  for (uint32_t i = 0; i < arguments.steps; ++i) {
    zero_grad();
    pass(weights).backward();
    const int64_t start_ns = monotonic_ns();
    step();
    step_ms.push_back(seconds_since(start_ns) * 1e3);
  }
  Beside result{.total_s = seconds_since(begin_ns), .passes = passes};
  over = true;
  threads.clear();
  result.worst_ms = *std::max_element(step_ms.begin(), step_ms.end());
  result.median_ms = median(step_ms);
  return result;
}

int run_beside(const Arguments& arguments) {
  at::set_num_threads(1);
  const std::vector<at::Tensor> theirs = layers();
  torch::optim::AdamW torchs(theirs, torch::optim::AdamWOptions(1e-3));
  const Beside torch = train_beside(
      theirs, arguments, [&] { torchs.zero_grad(); }, [&] { torchs.step(); });
  const std::vector<at::Tensor> ours = layers();
  ModelTensors model;
  for (const at::Tensor& weight : ours) {
    model.parameters.push_back({"p" + std::to_string(model.parameters.size()), weight});
  }
  Options options;
  options.layout = {.chunk_numel = kSide * kSide, .rcache_blocks = kLayers / 2};
  AdamW optimizer(model, AdamWOptions{.lr = 1e-3}, options);
  const Beside elixir = train_beside(
      ours, arguments, [&] { optimizer.zero_grad(); }, [&] { optimizer.step(); });
  nlohmann::json report;
  for (const auto& [name, of] : {std::pair("torch", torch), std::pair("elixir", elixir)}) {
    report[name] = {{"total_s", of.total_s},
                    {"step_median_ms", of.median_ms},
                    {"step_worst_ms", of.worst_ms},
                    {"passes", of.passes}};
    if (arguments.json) continue;
    std::cout << fmt::format(
        "{:<6} {} steps beside {} evaluating threads: {:.2f} s, step() {:.2f} ms, at worst {:.2f} "
        "ms; {} passes of evaluation\n",
        name, arguments.steps, arguments.threads, of.total_s, of.median_ms, of.worst_ms, of.passes);
  }
  if (arguments.json) std::cout << report.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  elixir::settle_inherited();
  CLI::App app("Measures how much evaluation slows step() down", "evaluation");
  elixir::init_cli(app);
  elixir::Arguments arguments;
  app.add_option("--chunks", arguments.chunks, "of one parameter each")
      ->check(CLI::Range(8u, 1'000'000u));
  app.add_option("--passes", arguments.passes, "of evaluation before a step")
      ->check(CLI::Range(1u, 1000u));
  app.add_option("--rounds", arguments.rounds, "of two steps each")->check(CLI::Range(1u, 1000u));
  app.add_option("--threads", arguments.threads,
                 "that evaluate while a model trains, in place of passes between steps")
      ->check(CLI::Range(1u, 256u));
  app.add_option("--steps", arguments.steps, "beside --threads")->check(CLI::Range(1u, 100'000u));
  app.add_flag("--json", arguments.json,
               "one JSON object: step_ms, step_after_evaluation_ms, ratio, growth_mib; with "
               "--threads, of torch and of elixir: total_s, step_median_ms, step_worst_ms, passes");
  app.add_flag("--check", arguments.check, "exit with 1 where a limit is missed");
  if (const int exit_code = elixir::parse_cli(app, argc, argv); exit_code >= 0) return exit_code;
  try {
    elixir::throw_if_error(elixir::prepare_cuda(c10::DeviceType::CPU));
    return arguments.threads > 0 ? elixir::run_beside(arguments) : elixir::run(arguments);
  } catch (const elixir::Error& failure) {
    return elixir::report_failure(app, elixir::Status(failure.code(), failure.what()));
  }
}
