#include "ctl/checkpoint_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/compute_type_names.h"
#include "base/units.h"

namespace elixir::ctl {
namespace {

constexpr uint64_t kMomentBytes = 8;  // exp_avg and exp_avg_sq, FP32

uint64_t bytes_per_param(ComputeType type) {
  return element_bytes(type) + kMomentBytes + master_bytes(type);
}

}  // namespace

// A chunk may change when the step after the one that is saved updates it. Until then, about a
// step, it is written from where it lies; later from a copy, while there is room for copies.
SaveEstimate estimate_save(const SaveRequest& request) {
  SaveEstimate estimate{.bytes = request.params * bytes_per_param(request.type)};
  estimate.shadow_bytes =
      std::min(request.shadow_bytes.value_or(estimate.bytes / 4), estimate.bytes);
  if (request.disk_bytes_per_s <= 0) return estimate;
  const auto bytes = static_cast<double>(estimate.bytes);
  const double rest = bytes - static_cast<double>(estimate.shadow_bytes);
  const double in_window = request.disk_bytes_per_s * request.step_s;
  estimate.write_s = bytes / request.disk_bytes_per_s;
  estimate.stall_s = std::max(0.0, rest / request.disk_bytes_per_s - request.step_s);
  estimate.enough_shadow_bytes = static_cast<uint64_t>(std::max(0.0, bytes - in_window));
  return estimate;
}

std::string estimate_json(const SaveRequest& request, const SaveEstimate& estimate) {
  nlohmann::ordered_json json = {{"params", request.params},
                                 {"dtype", compute_type_name(request.type)},
                                 {"bytes", estimate.bytes},
                                 {"shadow_bytes", estimate.shadow_bytes}};
  if (request.disk_bytes_per_s > 0) {
    json["write_s"] = estimate.write_s;
    json["stall_s"] = estimate.stall_s;
    json["enough_shadow_bytes"] = estimate.enough_shadow_bytes;
  }
  return json.dump();
}

std::string estimate_text(const SaveRequest& request, const SaveEstimate& estimate) {
  std::string text = fmt::format(
      "checkpoint   {}: {} trained parameters, {} bytes each in {}\n"
      "copies       up to {} of host memory while it is written\n",
      format_bytes(estimate.bytes), request.params, bytes_per_param(request.type),
      compute_type_name(request.type), format_bytes(estimate.shadow_bytes));
  if (request.disk_bytes_per_s <= 0) {
    return text + "time         say how fast the disk writes: --disk-gb-s\n";
  }
  text += fmt::format("written in   {:.1f} s at {:.2f} GB/s\n", estimate.write_s,
                      request.disk_bytes_per_s * 1e-9);
  text += fmt::format("stall        {:.1f} s: (bytes - copies) / rate - a step of {} s\n",
                      estimate.stall_s, request.step_s);
  if (estimate.stall_s > 0) {
    text += fmt::format("no stall     with --shadow {}\n", estimate.enough_shadow_bytes);
  }
  return text;
}

}  // namespace elixir::ctl
