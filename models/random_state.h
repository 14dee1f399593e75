#pragma once

// Saves and restores the state of torch's default generators, from which dropout draws its random
// numbers.

#include <c10/core/Device.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

// The state of the CPU's generator and, on a GPU, of the device's.
std::string random_state(c10::Device device);

// Restores the CPU's generator and, if `device` is a GPU, also the device's. Returns false if there
// is no state for the GPU; its generator then stays unchanged. kBadInput: random_state() did not
// write these bytes; nothing has changed.
Result<bool> restore_random_state(std::string_view bytes, c10::Device device);

}  // namespace elixir
