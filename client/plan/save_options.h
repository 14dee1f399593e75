#pragma once

// The options of a save, and the reports of a save and a load. Format of a saved folder:
// checkpoint/manifest.h, docs/checkpoints.md.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elixir {

// Must be the same on all ranks, except files and program, which rank 0 gives, and rank_state.
struct SaveOptions {
  bool optimizer_states = true;  // false: the model alone, as Hugging Face has it
  // false: the states alone, for a program that saves the model's values beside them by its own
  // means, in the compute type. It leaves out all parameters and what is in no chunk: buffers, and
  // Options::leave_out. Load those values first: loading compares a hash of all parameters that the
  // folder keeps, and completes them to the masters that were saved. On rank 0 this decides.
  bool model = true;
  // false: leaves out parameters that are not trained, the base of an adapter. A model that loads
  // the folder must have the same ones: loading compares a hash of them that the folder keeps.
  bool frozen = true;
  // Host memory for copies of states that an update is about to change, while training continues.
  // When it is full, updates wait. Empty: elixird's choice.
  std::optional<uint64_t> shadow_bytes = {};
  // Once the folder is published, its parent keeps three kinds of its folders step-NNNNNNNNN: the
  // last `keep` (0: all), those whose step is a multiple of keep_every (0: none), and the newest
  // good one. In a good one all values are finite, and so was the step. If none is known to be
  // good, the parent keeps the newest that an older release wrote.
  uint32_t keep = 0;
  uint64_t keep_every = 0;
  // false: the loss or the gradient norm of the last step was not finite. Rank 0's counts.
  bool finite_step = true;
  // true: save() throws kUnavailable while another save is in progress. With several ranks it may
  // throw on some of them only; then wait() tells the others. false: it waits for the other save.
  bool drop_if_busy = false;
  // Names in the folder ("config.json", or at most one folder deep: "user/tokens.json") and
  // contents.
  std::vector<std::pair<std::string, std::string>> files = {};
  std::string program = {};     // any text, for LoadReport::program; at most 64 KiB
  std::string rank_state = {};  // each rank's own, for LoadReport::rank_state: random numbers, data
};

// A successful save.
struct SaveReport {
  std::string path;
  uint64_t step = 0;          // since the run first began
  uint64_t bytes = 0;         // in all files
  uint64_t shadow_bytes = 0;  // the budget
  uint64_t shadow_peak_bytes = 0;
  double stall_s = 0;  // time that updates waited
  double write_s = 0;  // from the first byte until the folder has its name
  // Values of trained parameters and of their states that are a NaN or infinite.
  uint64_t not_finite = 0;
};

struct LoadReport {
  std::string path;
  uint64_t step = 0;        // the folder's; 0 for a plain Hugging Face model
  uint32_t ranks = 0;       // ranks that wrote it; 0 for such a model
  bool has_states = false;  // states were loaded, and the run resumes from there
  std::string program = {};
  std::string rank_state = {};  // saved by the rank with this number; "" if there was none
};

}  // namespace elixir
