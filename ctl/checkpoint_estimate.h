#pragma once

// Estimates the cost of a checkpoint that is saved while training continues.

#include <cstdint>
#include <optional>
#include <string>

#include "base/compute_type.h"
#include "base/status.h"

namespace elixir::ctl {

struct SaveRequest {
  uint64_t params = 0;  // trained
  ComputeType type = ComputeType::kBf16;
  double disk_bytes_per_s = 0;                // 0: unknown
  std::optional<uint64_t> shadow_bytes = {};  // none: elixird's default, a quarter of the files
  double step_s = 0;                          // 0: unknown
};

struct SaveEstimate {
  uint64_t bytes = 0;  // the files without their headers
  uint64_t shadow_bytes = 0;
  // Only if disk_bytes_per_s is known:
  double write_s = 0;
  double stall_s = 0;  // max(0, (bytes - shadow) / rate - window); the window is a step
  uint64_t enough_shadow_bytes = 0;  // the least that avoids a stall
};

SaveEstimate estimate_save(const SaveRequest& request);

std::string estimate_json(const SaveRequest& request, const SaveEstimate& estimate);
std::string estimate_text(const SaveRequest& request, const SaveEstimate& estimate);

}  // namespace elixir::ctl
