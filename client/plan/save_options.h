#pragma once

// What a program gives to a save and learns of it, and of a load. Format of a saved folder:
// checkpoint/manifest.h, docs/training.md.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elixir {

// The same on all ranks, but for files and program, which rank 0 gives, and rank_state.
struct SaveOptions {
  bool optimizer_states = true;  // false: the model alone, as Hugging Face has it
  // false: without parameters that are not trained, the base of an adapter. What it is loaded into
  // must have the same: the folder keeps a hash of them, which is compared.
  bool frozen = true;
  // Host memory for copies of what an update is about to change, while training goes on; where it
  // is full, updates wait. Empty: elixird's choice.
  std::optional<uint64_t> shadow_bytes = {};
  // Once the folder is published: of its parent's step-NNNNNNNNN the last `keep` stay (0: all), and
  // those whose step is a multiple of keep_every (0: none).
  uint32_t keep = 0;
  uint64_t keep_every = 0;
  // save() throws kUnavailable while another save is under way (of several ranks perhaps on some
  // alone: then those that it does not tell hear it from wait()); else it waits for that one.
  bool drop_if_busy = false;
  // Names in the folder ("config.json", "user/tokens.json": one folder deep at most), and bytes.
  std::vector<std::pair<std::string, std::string>> files = {};
  std::string program = {};  // any text of the program's, for LoadReport::program; 64 KiB at most
  std::string rank_state = {};  // each rank's own, for LoadReport::rank_state: random numbers, data
};

// A save that has ended well.
struct SaveReport {
  std::string path;
  uint64_t step = 0;          // since the run's first beginning
  uint64_t bytes = 0;         // of all files
  uint64_t shadow_bytes = 0;  // the budget
  uint64_t shadow_peak_bytes = 0;
  double stall_s = 0;  // for which updates waited
  double write_s = 0;  // from the first byte to the folder's name
};

struct LoadReport {
  std::string path;
  uint64_t step = 0;        // that the folder is of; 0 for a plain Hugging Face model
  uint32_t ranks = 0;       // that wrote it; 0 for one
  bool has_states = false;  // they were loaded: the run goes on from there
  std::string program = {};
  std::string rank_state = {};  // of the rank with this one's number; "" where there was none
};

}  // namespace elixir
