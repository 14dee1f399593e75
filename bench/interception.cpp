// What interception costs an operator: the same small operator on an ordinary tensor and on a
// parameter whose chunk is gathered, in turn, in one run.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/inherited.h"
#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/torch_device/cuda_library.h"

namespace elixir {
namespace {

struct Row {
  std::string name;
  double plain_ns, parameter_ns;
};

double once_ns(const std::function<void()>& body, int repetitions) {
  const int64_t start_ns = monotonic_ns();
  for (int i = 0; i < repetitions; ++i) body();
  return static_cast<double>(monotonic_ns() - start_ns) / repetitions;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Row compare(const std::string& name, const std::function<void(const at::Tensor&)>& operation,
            const at::Tensor& plain, const at::Tensor& parameter) {
  constexpr int kRounds = 41, kRepetitions = 2000;
  std::vector<double> plain_ns, parameter_ns;
  for (int round = 0; round < kRounds; ++round) {
    plain_ns.push_back(once_ns([&] { operation(plain); }, kRepetitions));
    parameter_ns.push_back(once_ns([&] { operation(parameter); }, kRepetitions));
  }
  return {name, median(plain_ns), median(parameter_ns)};
}

// On a GPU it is the host's time that counts: operators are enqueued, not awaited.
std::vector<Row> measure(const at::Device& device) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  torch::nn::Linear layer(16, 16);
  const at::Tensor plain = layer->weight.detach().clone().to(device);
  Options runtime;
  runtime.device = device.str();
  AdamW optimizer(*layer, {}, runtime);
  const at::Tensor parameter = layer->weight.detach();
  const at::Tensor x = at::randn({16, 16}).to(device);
  const Gathered guard = gathered({layer->weight});
  return {
      compare(
          "add", [](const at::Tensor& w) { at::add(w, w); }, plain, parameter),
      compare(
          "mul by a number", [](const at::Tensor& w) { at::mul(w, 2.0); }, plain, parameter),
      compare(
          "mm 16x16", [&](const at::Tensor& w) { at::mm(x, w); }, plain, parameter),
      compare(
          "view (t)", [](const at::Tensor& w) { w.t(); }, plain, parameter),
  };
}

void print(const std::vector<Row>& rows, bool json) {
  nlohmann::json results = nlohmann::json::array();
  for (const Row& row : rows) {
    const double overhead_us = (row.parameter_ns - row.plain_ns) * 1e-3;
    results.push_back({{"operator", row.name},
                       {"plain_us", row.plain_ns * 1e-3},
                       {"parameter_us", row.parameter_ns * 1e-3},
                       {"overhead_us", overhead_us}});
    if (!json) {
      fmt::print("{:16}  plain {:6.2f} us  parameter {:6.2f} us  overhead {:5.2f} us\n", row.name,
                 row.plain_ns * 1e-3, row.parameter_ns * 1e-3, overhead_us);
    }
  }
  if (json) std::cout << nlohmann::json{{"results", results}}.dump() << std::endl;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  elixir::settle_inherited();
  CLI::App app("What interception costs an operator on a parameter", "interception");
  elixir::init_cli(app);
  bool json = false;
  std::string device = "cpu";
  app.add_option("--device", device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--json", json,
               "one JSON object: results [{operator, plain_us, parameter_us, overhead_us}]");
  if (const int exit_code = elixir::parse_cli(app, argc, argv); exit_code >= 0) return exit_code;
  try {
    elixir::throw_if_error(elixir::prepare_cuda(at::Device(device).type()));
    elixir::print(elixir::measure(at::Device(device)), json);
  } catch (const elixir::Error& failure) {
    return elixir::report_failure(app, elixir::Status(failure.code(), failure.what()));
  }
  return 0;
}
