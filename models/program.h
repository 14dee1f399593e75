#pragma once

// Things that elixir-train and elixir-generate share: device, threads, errors and exit codes.

#include <cstdint>
#include <functional>
#include <string>

#include "base/problems.h"
#include "models/train_options.h"

namespace elixir {

// The value for Options::device.
const char* device_of(DeviceChoice choice);

// Sets the number of threads of torch's operators; 0: compute_threads() chooses. With several
// threads, also limits how long a waiting thread spins. The program may start again for this
// (limit_openmp_spinning), so call this function first.
void use_threads(int threads, uint32_t ranks);

// Writes a line for each problem to standard error. Returns the first problem's exit code.
// REQUIRES: `problems` is not empty.
int report_problems(const std::string& program, const Problems& problems);

// The code and the message of the exception in flight. `memory_remedy`: advice for the case that
// LibTorch finds no memory on the device. REQUIRES: it is called in a catch block.
Status current_failure(const std::string& memory_remedy);

// Calls `run` and returns its exit code. If it throws, writes the message to standard error and
// returns the exit code of the error.
int run_program(const std::string& program, const std::string& memory_remedy,
                const std::function<int()>& run);

}  // namespace elixir
