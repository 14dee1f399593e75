#include "client/tensors/torch_version.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/version.h>

#include "base/throw_error.h"

namespace elixir {

TorchVersion torch_of_build() { return {TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR}; }

// The one function of libtorch_cpu.so that says it: a byte for each of major, minor and patch, from
// the highest on.
TorchVersion torch_of_process() {
  const uint64_t version = aoti_torch_abi_version();
  return {static_cast<uint32_t>(version >> 56), static_cast<uint32_t>(version >> 48 & 0xff)};
}

Status check_torch(TorchVersion build, TorchVersion process) {
  if (build == process) return Status();
  return error(Code::kVersionMismatch,
               "this Elixir was built for torch {}.{} and the program has torch {}.{}: use the "
               "libelixir.so in lib/torch{}{} of an installation that has it, or build Elixir for "
               "that torch (scripts/build.sh --torch {}.{}.0)",
               build.major, build.minor, process.major, process.minor, process.major, process.minor,
               process.major, process.minor);
}

void require_torch_of_build() {
  static const Status fits = check_torch(torch_of_build(), torch_of_process());
  if (!fits.ok()) throw Error(fits);
}

}  // namespace elixir
