#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/problems.h"

namespace CLI {
class App;
}

namespace elixir {

// Of a run, since its first beginning: progress and elixird count steps in 32 bits.
inline constexpr uint64_t kMostSteps = UINT32_MAX;

// Where elixir-train's weights come from and where they go.
struct CheckpointOptions {
  std::string folder = {};         // of step-NNNNNNNNN; "": no checkpoints are written
  int64_t save_every = 0;          // steps; 0: not by steps
  double save_minutes = 0;         // 0: not by time
  uint32_t keep = 3;               // the newest so many; 0: all
  uint64_t keep_every = 0;         // and those whose step is a multiple of it; 0: no others
  std::string resume = "none";     // "latest" of `folder`, "none", or a checkpoint's folder
  std::string init = {};           // a Hugging Face folder or a checkpoint, weights alone; "": none
  std::string export_folder = {};  // the model at the end, as Hugging Face has it; "": none
  int64_t sample_every = 0;        // steps between samples; 0: none
  std::optional<uint64_t> shadow_bytes = {};  // of a save; empty: elixird's choice
  bool stop_after_save = false;               // after that which SIGUSR1 asks for
  int64_t diverged_after = 20;  // steps in a row without a finite loss or norm; 0: never

  bool resumes() const { return resume != "none"; }
};

void add_checkpoint_options(CLI::App& app, CheckpointOptions& options);

// kInvalidArgument for each value out of its range, and each flag that needs another one.
Problems check_checkpoint_options(const CheckpointOptions& options);

}  // namespace elixir
