// bench/kernels: what runs on the device against the bandwidth at which the same device copies its
// memory in the same run.

#include "kernels/kernels.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cli.h"
#include "base/compute_type_names.h"
#include "base/inherited.h"
#include "base/units.h"
#include "optim_cpu/master.h"

namespace elixir::bench {
namespace {

constexpr int kNoGpu = 77;
constexpr size_t kPatternNumel = 1 << 20;
constexpr int kLaunches = 4;  // between two events, so that the gap before the first is small

struct Arguments {
  uint64_t numel = uint64_t{64} << 20;
  int rounds = 15;
  int n_grads = 1;
  std::vector<std::string> dtypes = {"bf16", "fp16", "fp32"};
  bool json = false;
};

// CUDA refusing what every device can do ends the program: there is nothing to measure.
void must(cudaError_t outcome, const char* what) {
  ELIXIR_CHECK(outcome == cudaSuccess, "{}: {}", what, cudaGetErrorString(outcome));
}

// Device memory, never given back: the program ends with it.
std::byte* allocate(uint64_t bytes) {
  void* memory = nullptr;
  const cudaError_t outcome = cudaMalloc(&memory, bytes);
  ELIXIR_CHECK(outcome == cudaSuccess, "{} of device memory: {}; try a smaller --numel",
               format_bytes(bytes), cudaGetErrorString(outcome));
  return static_cast<std::byte*>(memory);
}

// `pattern` over and over, until `bytes` are filled.
std::byte* filled(const std::vector<std::byte>& pattern, uint64_t bytes) {
  std::byte* const memory = allocate(bytes);
  for (uint64_t at = 0; at < bytes; at += pattern.size()) {
    must(cudaMemcpy(memory + at, pattern.data(), std::min<uint64_t>(pattern.size(), bytes - at),
                    cudaMemcpyHostToDevice),
         "filling device memory");
  }
  return memory;
}

// Gradients, parameters and states of `numel` parameters with plausible values.
struct Job {
  Job(ComputeType compute_type, size_t elements, int n_grads)
      : type(compute_type), numel(elements) {
    std::vector<float> values(kPatternNumel), squares(kPatternNumel);
    for (size_t i = 0; i < kPatternNumel; ++i) {
      values[i] = static_cast<float>(static_cast<int>(i * 2654435761U >> 16 & 0xffff) - 0x8000) *
                  (0.1f / 0x8000);
      squares[i] = values[i] * values[i];
    }
    std::vector<std::byte> params(kPatternNumel * element_bytes(type)),
        masters(std::max<uint64_t>(1, kPatternNumel * master_bytes(type)));
    optim::load_master(type, values.data(), kPatternNumel, params.data(), masters.data());
    for (int rank = 0; rank < n_grads; ++rank) {
      grads.push_back(filled(params, numel * element_bytes(type)));
    }
    param = filled(params, numel * element_bytes(type));
    if (master_bytes(type) != 0) master = filled(masters, numel * master_bytes(type));
    exp_avg = floats(values);
    exp_avg_sq = floats(squares);
  }

  float* floats(const std::vector<float>& values) const {
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    return reinterpret_cast<float*>(
        filled({bytes, bytes + values.size() * sizeof(float)}, numel * sizeof(float)));
  }

  optim::UpdateSpan span() const {
    return {.type = type,
            .n_grads = static_cast<int>(grads.size()),
            .grads = grads.data(),
            .param = param,
            .master = master,
            .moments = {exp_avg, exp_avg_sq},
            .numel = numel};
  }

  ComputeType type;
  size_t numel;
  std::vector<const void*> grads;
  std::byte* param = nullptr;
  std::byte* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
};

// One measured thing. `bytes` are those it must read and write.
struct Measured {
  std::string kernel, dtype;
  uint64_t bytes_per_param;
  uint64_t bytes;
  std::function<Status()> launch;
  std::vector<double> seconds = {};

  double median_seconds() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  double gb_s() const { return 1e-9 * static_cast<double>(bytes) / median_seconds(); }
};

// FP16's parameter is not read: its master holds all of it.
uint64_t adam_bytes_per_param(ComputeType type, int n_grads) {
  const uint64_t grads = static_cast<uint64_t>(n_grads) * element_bytes(type);
  const uint64_t param = (type == ComputeType::kFp16 ? 1 : 2) * element_bytes(type);
  return grads + param + 2 * master_bytes(type) + 4 * sizeof(float);
}

std::vector<Measured> kernels_on(const Job& job, cudaStream_t stream) {
  const std::string dtype = compute_type_name(job.type);
  const uint64_t element = element_bytes(job.type);
  auto* const norm = reinterpret_cast<NormSum*>(allocate(sizeof(NormSum)));
  auto measured = [&](const char* kernel, uint64_t bytes_per_param,
                      std::function<Status()> launch) {
    return Measured{kernel, dtype, bytes_per_param, bytes_per_param * job.numel, std::move(launch)};
  };
  std::vector<Measured> all;
  all.push_back(measured(
      "adam", adam_bytes_per_param(job.type, static_cast<int>(job.grads.size())), [&job, stream] {
        return kernels::launch_adam(job.span(), optim::make_adam_step({}, 100, 1), stream);
      }));
  all.push_back(measured("squared_norm", element, [&job, norm, stream] {
    return kernels::launch_squared_norm(job.type, job.grads[0], job.numel, norm, stream);
  }));
  return all;
}

// The device's own copy of half of some memory to the other half, reads and writes counted.
Measured copy_of(uint64_t bytes, cudaStream_t stream) {
  std::byte* const from = filled(std::vector<std::byte>(kPatternNumel, std::byte{0x5a}), bytes);
  std::byte* const to = allocate(bytes);
  return {"copy", "", 0, 2 * bytes, [=] {
            must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "a copy");
            return Status();
          }};
}

class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    must(cudaEventCreate(&begin_), "an event");
    must(cudaEventCreate(&end_), "an event");
  }

  Status measure(Measured& one) const {
    must(cudaEventRecord(begin_, stream_), "an event");
    for (int i = 0; i < kLaunches; ++i) ELIXIR_RETURN_IF_ERROR(one.launch());
    must(cudaEventRecord(end_, stream_), "an event");
    must(cudaEventSynchronize(end_), one.kernel.c_str());
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, begin_, end_), "an event");
    one.seconds.push_back(1e-3 * milliseconds / kLaunches);
    return Status();
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

void print(const std::string& device, const Arguments& arguments, const Measured& copy,
           const std::vector<Measured>& all) {
  nlohmann::ordered_json report = {{"device", device},
                                   {"numel", arguments.numel},
                                   {"n_grads", arguments.n_grads},
                                   {"copy_gb_s", copy.gb_s()},
                                   {"results", nlohmann::ordered_json::array()}};
  if (!arguments.json) std::cout << fmt::format("{}: copies {:.0f} GB/s\n", device, copy.gb_s());
  for (const Measured& one : all) {
    const double fraction = one.gb_s() / copy.gb_s();
    report["results"].push_back({{"kernel", one.kernel},
                                 {"dtype", one.dtype},
                                 {"bytes_per_param", one.bytes_per_param},
                                 {"microseconds", 1e6 * one.median_seconds()},
                                 {"gb_s", one.gb_s()},
                                 {"fraction", fraction}});
    if (arguments.json) continue;
    std::cout << fmt::format("  {:<14} {:<4} {:8.1f} us  {:6.0f} GB/s  {:.3f} of the copy\n",
                             one.kernel, one.dtype, 1e6 * one.median_seconds(), one.gb_s(),
                             fraction);
  }
  if (arguments.json) std::cout << report.dump() << "\n";
}

Status run(const Arguments& arguments, const std::string& device) {
  if (arguments.n_grads > optim::kMaxGrads) {
    return error(Code::kInvalidArgument, "--grads {} is beyond {}, the most that Adam sums",
                 arguments.n_grads, optim::kMaxGrads);
  }
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "a stream");
  std::vector<Job> jobs;
  for (const std::string& name : arguments.dtypes) {
    const Result<ComputeType> type = parse_name(kComputeTypeNames, name);
    if (!type.ok()) return type.status();
    jobs.emplace_back(*type, arguments.numel, arguments.n_grads);
  }
  Measured copy = copy_of(arguments.numel * sizeof(float), stream);
  std::vector<Measured> all;
  for (const Job& job : jobs) {
    for (Measured& one : kernels_on(job, stream)) all.push_back(std::move(one));
  }
  const Timer timer(stream);
  // Everything once a round, and the first round not counted: modules are loaded in it.
  for (int round = 0; round <= arguments.rounds; ++round) {
    ELIXIR_RETURN_IF_ERROR(timer.measure(copy));
    for (Measured& one : all) ELIXIR_RETURN_IF_ERROR(timer.measure(one));
    if (round != 0) continue;
    copy.seconds.clear();
    for (Measured& one : all) one.seconds.clear();
  }
  print(device, arguments, copy, all);
  return Status();
}

}  // namespace
}  // namespace elixir::bench

int main(int argc, char** argv) {
  elixir::settle_inherited();
  elixir::bench::Arguments arguments;
  CLI::App app(
      "The device kernels' rates and their fractions of the device's own copy bandwidth. "
      "Ends with 77 where there is no GPU.",
      "kernels");
  elixir::init_cli(app);
  app.add_option("--numel", arguments.numel, "Parameters; well beyond the device's caches")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", arguments.rounds, "Times each thing is measured; medians are given")
      ->check(CLI::PositiveNumber);
  app.add_option("--grads", arguments.n_grads, "Gradients that Adam sums, 1 to 64")
      ->check(CLI::PositiveNumber);
  app.add_option("--dtype", arguments.dtypes, "Compute types: bf16, fp16, fp32");
  app.add_flag("--json", arguments.json, "Print one JSON object");
  if (const int code = elixir::parse_cli(app, argc, argv); code >= 0) return code;
  int devices = 0;
  const cudaError_t outcome = cudaGetDeviceCount(&devices);
  cudaDeviceProp properties;
  if (outcome != cudaSuccess || devices == 0 ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::cerr << "kernels: no GPU, nothing is measured: " << cudaGetErrorString(outcome) << "\n";
    return elixir::bench::kNoGpu;
  }
  const elixir::Status status = elixir::bench::run(arguments, properties.name);
  return status.ok() ? 0 : elixir::report_failure(app, status);
}
