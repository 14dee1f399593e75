#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/problems.h"
#include "models/train_model.h"
#include "models/train_options.h"

namespace elixir {

// What the command line gives as words that mean something beside other flags.
struct TrainWords {
  ModelWords model;
  std::string loss_scale = "dynamic";
  std::string inject_overflow, link;
  std::optional<uint64_t> gpu_memory = {};
  bool offload = false, no_offload = false;
};

// Puts what the words mean into `options`, which holds the other flags' values, and checks all of
// it. A problem names the flag, what is possible and what was given.
void understand(const TrainWords& words, TrainOptions& options, Problems& problems);

}  // namespace elixir
