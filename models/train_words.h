#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/problems.h"
#include "models/train_model.h"
#include "models/train_options.h"

namespace elixir {

// Flags whose meaning depends on other flags, as the command line gives them.
struct TrainWords {
  ModelWords model;
  std::string loss_scale = "dynamic";
  std::string inject_overflow, link;
  std::optional<uint64_t> gpu_memory = {};
  bool offload = false, no_offload = false;
};

// Puts the meaning of `words` into `options`, which holds the other flags' values, and checks all
// options. A problem names the flag, its possible values and the given one.
void understand(const TrainWords& words, TrainOptions& options, Problems& problems);

}  // namespace elixir
