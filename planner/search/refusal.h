#pragma once

// Why nothing fits: what it would take at least, what there is, where, and what helps.

#include <optional>

#include "base/status.h"
#include "planner/search/candidate.h"

namespace elixir::planner {

// The activations alone exceed a GPU.
Status refusal_of_activations(const ModelProfile& profile, const Machine& machine);

// One parameter does not fit what is left of a GPU.
Status refusal_of_parameter(const ProfiledParameter& parameter, uint64_t need_bytes,
                            uint64_t allowed_bytes);

// The least that could run, and what was asked for.
struct Need {
  uint64_t allowed_bytes = 0;  // of a GPU
  uint32_t blocks = 1;         // that operators need
  Exchange exchange = Exchange::kHost;
  std::optional<uint32_t> asked_blocks = {};
  std::optional<double> asked_gpu_share = {};
};
Status refusal(const Setting& setting, const Need& need);

}  // namespace elixir::planner
