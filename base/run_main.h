#pragma once

#include <exception>
#include <functional>

#include "base/status.h"

namespace elixir {

// Runs a program and returns its exit code. If `run` throws, standard error names the exception,
// and the exit code is the exception's. Call it in every main(), behind settle_inherited().
// The program ends with 4 at once if the working directory was removed, because libraries such as
// oneMKL would end the process there. It ends with 3 instead of 0 if standard output could not be
// written. It also makes std::terminate() end a program that has no memory or no threads left
// with 3.
int run_main(const char* program, const std::function<int()>& run);

// Any exception as a Status, in one line. If memory (LibTorch's, too) or threads ran out, it is
// kResourceExhausted, with a remedy. For std::bad_alloc it allocates nothing except the message.
Status status_of(const std::exception& failure);

}  // namespace elixir
