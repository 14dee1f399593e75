#pragma once

// What elixir-train and elixir-generate are beside what they do.

#include <cstdint>
#include <functional>
#include <string>

#include "base/problems.h"
#include "models/train_options.h"

namespace elixir {

// As Options::device has it.
const char* device_of(DeviceChoice choice);

// Threads of torch's operators: so many, or with 0 as many as compute_threads() says. Of
// several, none spins for long: the program may
// start again for that (limit_openmp_spinning), so call this first.
void use_threads(int threads, uint32_t ranks);

// Writes a line for each problem to standard error; returns the first one's exit code. REQUIRES:
// there are some.
int report_problems(const std::string& program, const Problems& problems);

// What the exception in flight says, and its code. `memory_remedy`: what helps where LibTorch finds
// no memory on the device. REQUIRES: it is called in a catch block.
Status current_failure(const std::string& memory_remedy);

// The exit code: what `run` returns, or that of what it throws. What that says goes to standard
// error.
int run_program(const std::string& program, const std::string& memory_remedy,
                const std::function<int()>& run);

}  // namespace elixir
