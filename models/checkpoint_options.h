#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/problems.h"

namespace CLI {
class App;
}

namespace elixir {

// The most steps of a run, restarts included: progress and elixird count steps in 32 bits.
inline constexpr uint64_t kMostSteps = UINT32_MAX;

// The source of elixir-train's weights and the places where it saves them.
struct CheckpointOptions {
  std::string folder = {};      // holds step-NNNNNNNNN; "": no checkpoints are written
  int64_t save_every = 0;       // steps; 0: not by steps
  double save_minutes = 0;      // 0: not by time
  uint32_t keep = 3;            // keep this many of the newest; 0: all
  uint64_t keep_every = 0;      // also keep steps that are a multiple of it; 0: no others
  std::string resume = "none";  // "latest" of `folder`, "none", or a checkpoint's folder
  std::string init = {};        // a Hugging Face folder or a checkpoint; only its weights; "": none
  std::string export_folder = {};             // the final model in Hugging Face's form; "": none
  int64_t sample_every = 0;                   // steps between samples; 0: none
  std::optional<uint64_t> shadow_bytes = {};  // budget of a save; empty: elixird's choice
  bool stop_after_save = false;               // stop after a save that SIGUSR1 asked for
  int64_t diverged_after = 20;  // steps in a row without a finite loss or norm; 0: never

  bool resumes() const { return resume != "none"; }
};

void add_checkpoint_options(CLI::App& app, CheckpointOptions& options);

// Gives kInvalidArgument for each value that is out of range and for each flag whose required flag
// is missing.
Problems check_checkpoint_options(const CheckpointOptions& options);

}  // namespace elixir
