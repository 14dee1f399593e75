#pragma once

#include "tests/fake_cuda/runtime.h"

namespace fake_cuda {

// Starts the stream's thread if it has none. REQUIRES: the runtime's mutex.
void start_thread(Stream& stream);

}  // namespace fake_cuda
