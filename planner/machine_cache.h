#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/machine.h"

namespace elixir::planner {

// A machine file as a probe writes it: the machine's own fields (machine_json.h) and these.
struct ProbedMachine {
  Machine machine;                      // with the host's name and the date
  std::string device = "";              // the measured one: "cpu", "cuda (NVIDIA H100 80GB HBM3)"
  std::vector<std::string> notes = {};  // remarks for people, not measurements
  // What was measured, so that the rates are not taken for another GPU's or processor's
  // (client/probe/hardware.h). "": not known, in files of earlier releases.
  std::string hardware = "";
};

std::string to_json(const ProbedMachine& probed);
Result<ProbedMachine> probed_from_json(std::string_view text);  // errors as machine_from_json()

// The folder that keeps what trainings and `elixirctl probe` have found out: elixir/ in
// XDG_CACHE_HOME or in ~/.cache. Returns kInvalidArgument if neither is known.
Result<std::string> cache_folder();

// Removes the oldest files of cache_folder() whose names begin with `prefix`, so that with `kept`
// there are at most `most`. Failures leave files where they are.
void keep_newest(std::string_view prefix, size_t most, const std::string& kept);

// The path of this host's machine file: the file that ELIXIR_MACHINE_FILE names, else
// elixir/machine-HOSTNAME.json in XDG_CACHE_HOME or in ~/.cache. Returns kInvalidArgument if none
// of these is known.
Result<std::string> machine_cache_path();

// The path of the rates of such hardware, beside machine_cache_path()'s default:
// elixir/rates-WHAT.json. ELIXIR_MACHINE_FILE does not change it.
Result<std::string> hardware_cache_path(std::string_view hardware);

// Whether ELIXIR_MACHINE_FILE names this host's machine file.
bool machine_file_is_named();

// Returns nullopt if there is no such file. Returns kBadInput, with the path and what to do, if the
// file cannot be used.
Result<std::optional<ProbedMachine>> load_machine(const std::string& path);

// Removes the file. Returns whether it was there.
Result<bool> forget_machine(const std::string& path);

// Removes the rates of all hardware. Returns the files that were there.
Result<std::vector<std::string>> forget_hardware();

// Makes the folders and replaces the file atomically: a reader finds the old one or the new one.
Status store_machine(const std::string& path, const ProbedMachine& probed);

}  // namespace elixir::planner
