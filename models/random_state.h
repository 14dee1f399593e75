#pragma once

// The random numbers that dropout draws, as they go on: the state of torch's default generators.

#include <c10/core/Device.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

// Of the CPU's generator and, on a GPU, of the device's.
std::string random_state(c10::Device device);

// kBadInput, with nothing changed: not what random_state() wrote. A device's state is taken where
// the run computes on one now; one that lacks it leaves the device's generator as it is, and false
// is returned.
Result<bool> restore_random_state(std::string_view bytes, c10::Device device);

}  // namespace elixir
