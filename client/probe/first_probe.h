#pragma once

// The rates that a training is planned with: those that an earlier one or `elixirctl probe` left
// (planner/machine_cache.h), else measured now by elixir-probe, in a process of its own.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/machine_cache.h"
#include "planner/report/measured_step.h"

namespace elixir::probe {

struct FirstProbe {
  std::string hardware;  // as hardware.h describes it; "": CUDA shows no GPU
  bool on_gpus = false;
  uint32_t devices = 1;      // at least so many must have been measured
  uint32_t ranks = 1;        // of this node, which all ask
  std::string job = "";      // equal on all ranks of a start, which have one parent process
  double limit_s = 20;       // then the probe is ended; ELIXIR_PROBE_SECONDS replaces it
  std::string program = "";  // "": elixir-probe, as installed with this program or library
};

struct KnownMachine {
  planner::ProbedMachine probed;
  // Whether correct_rates() may be called: false for rates that somebody wrote down.
  bool correctable = false;
};

// Loads the rates of this hardware, or measures them. All ranks of a node call it and get the same
// answer: the first one asks, and keeps the answer for the others in job-KEY.json of
// planner::cache_folder(), for at most kAnswerSeconds.
//
// Measured rates are kept in hardware_cache_path(), and in machine_cache_path() if nothing is there
// and nobody has named it. The file that was measured later counts. If both are of the same
// measurement, the first counts, because it has corrections.
//
// A file of other hardware, or of fewer devices, is not used. Nor is one that cannot be read; the
// log has a line. A file that ELIXIR_MACHINE_FILE names is used for any hardware, if it is of the
// same kind of device.
//
// Returns kUnavailable, with cause and remedy, if nothing is known and ELIXIR_PROBE=0 forbids to
// measure, or if measuring failed or took longer than the limit.
inline constexpr int kAnswerSeconds = 600;
inline constexpr double kMostProbeSeconds = 3600;
Result<KnownMachine> load_or_measure(const FirstProbe& asked);

// Keeps what a training has measured, for later plans: planner::corrected() of the rates that it
// was planned with, in hardware_cache_path(). `training` names it, for people. Returns kUnavailable
// if another program holds the files now, or if the rates were forgotten or measured again since.
Status correct_rates(const planner::ProbedMachine& planned_with,
                     const std::vector<planner::LegOff>& off, const std::string& training);

}  // namespace elixir::probe
