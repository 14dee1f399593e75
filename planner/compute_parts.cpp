#include "planner/compute_parts.h"

#include <algorithm>

#include "base/check.h"

namespace elixir::planner {
namespace {

struct Rates {
  double matrix = 0, memory = 0;  // operations and bytes a second
  double attention_forward = 0, attention_backward = 0, attention_repeated = 0;
  double launch_s = 0;
};

// Between two head widths as they lie on a line; beyond the known ones, those of the nearest.
AttentionRate attention_rate(const std::vector<AttentionRate>& known, uint32_t head) {
  const auto above = std::find_if(known.begin(), known.end(),
                                  [&](const AttentionRate& rate) { return rate.head >= head; });
  if (above == known.end()) return known.back();
  if (above == known.begin()) return known.front();
  const AttentionRate& below = *(above - 1);
  const double share =
      static_cast<double>(head - below.head) / static_cast<double>(above->head - below.head);
  return {.head = head,
          .forward_tflops =
              below.forward_tflops + share * (above->forward_tflops - below.forward_tflops),
          .backward_tflops =
              below.backward_tflops + share * (above->backward_tflops - below.backward_tflops)};
}

Rates rates_of(const ModelProfile& profile, const Machine& machine) {
  const double matrix = matrix_tflops(machine, profile.dtype_bytes());
  Rates rates;
  rates.matrix = 1e12 * matrix;
  rates.memory = 1e9 * device_gb_s(machine);
  rates.launch_s = 1e-6 * (machine.gpu_launch_us > 0 ? machine.gpu_launch_us : kAssumedLaunchUs);
  rates.attention_forward = rates.attention_backward = kAssumedAttentionShare * rates.matrix;
  if (!machine.gpu_attention_tflops.empty()) {
    uint32_t head = 0;
    for (const OperatorWork& work : profile.step_work) head = std::max(head, work.attention_head);
    const AttentionRate rate = attention_rate(machine.gpu_attention_tflops, head);
    const double scale = 1e12 * matrix / machine.gpu_tflops;
    rates.attention_forward = scale * rate.forward_tflops;
    rates.attention_backward = scale * rate.backward_tflops;
  }
  constexpr double kForward = 2, kBackward = 5;  // products of an attention
  rates.attention_repeated = (kForward + kBackward) / (kForward / rates.attention_forward +
                                                       kBackward / rates.attention_backward);
  return rates;
}

double product_s(const MatrixProduct& product, const Rates& rates, uint32_t dtype_bytes) {
  const auto rows = static_cast<double>(product.rows), inner = static_cast<double>(product.inner),
             columns = static_cast<double>(product.columns);
  const double elements =
      static_cast<double>(product.count) * (rows * inner + inner * columns + rows * columns);
  return std::max(product.flops() / rates.matrix, elements * dtype_bytes / rates.memory);
}

}  // namespace

void ComputeParts::add(const ComputeParts& other) {
  products_s += other.products_s;
  attention_s += other.attention_s;
  memory_s += other.memory_s;
  launch_s += other.launch_s;
}

std::vector<ComputeParts> compute_parts(const ModelProfile& profile, const Machine& machine) {
  ELIXIR_CHECK(!profile.step_work.empty(), "operators are not described");
  const Rates rates = rates_of(profile, machine);
  const bool repeats = !profile.checkpoint_regions.empty() && profile.regions.empty();
  std::vector<double> second_run(profile.steps.size(), 0);  // attention of second runs
  for (const ProfiledRegion& region : profile.regions) {
    for (const SecondRunWork& run : region.second_run) {
      second_run[run.step] += run.all().attention_flops;
    }
  }
  std::vector<ComputeParts> parts;
  parts.reserve(profile.step_work.size());
  for (uint32_t i = 0; i < profile.step_work.size(); ++i) {
    const OperatorWork& work = profile.step_work[i];
    ComputeParts& part = parts.emplace_back();
    for (const MatrixProduct& product : work.products) {
      part.products_s += product_s(product, rates, profile.dtype_bytes());
    }
    const double attention = i < profile.backward_first() ? rates.attention_forward
                             : repeats                    ? rates.attention_repeated
                                                          : rates.attention_backward;
    part.attention_s = second_run[i] / rates.attention_forward +
                       (work.attention_flops - second_run[i]) / attention;
    part.memory_s = work.bytes / rates.memory;
    part.launch_s = work.kernels * rates.launch_s;
  }
  return parts;
}

}  // namespace elixir::planner
