#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

// What the command line gives as words, before they are understood.
struct TrainWords {
  std::string model = "nano";
  std::string dtype = "fp32";
  std::string lr_schedule = "cosine";
  std::string update = "deferred";
  std::string loss_scale = "dynamic";
  std::string inject_overflow;
  std::string device = "auto";
  std::string attention = "auto";
  std::string gpu_memory;
  std::string exchange = "auto";
  std::string strategy = "auto";
  bool offload = false, no_offload = false;
  std::optional<double> gpu_home_share;
  std::string link;
};

// Puts what they mean into `options`, which holds the other flags' values, and checks all of it.
// kInvalidArgument names the flag, what is possible and what was given.
Status understand(const TrainWords& words, TrainOptions& options);

}  // namespace elixir
