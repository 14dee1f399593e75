#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/machine.h"

namespace elixir::planner {

// Machine's members under their own names; gpu_half_tokens, copies_hidden, name and probed may be
// missing, g2g_gb_s with one GPU.
std::string to_json(const Machine& machine);

// What a command line says in the file's place.
struct MachineOverrides {
  std::optional<uint32_t> gpus = {};
  std::optional<uint64_t> gpu_memory_bytes = {};
  std::optional<uint64_t> host_memory_bytes = {};
};

// kBadInput: not JSON, a field that is missing, of another type or negative, or check_machine()'s.
Result<Machine> machine_from_json(std::string_view text, const MachineOverrides& overrides = {});

}  // namespace elixir::planner
