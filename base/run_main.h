#pragma once

#include <exception>
#include <functional>

#include "base/status.h"

namespace elixir {

// Runs a program and returns its exit code: the one of `run`, or the one of what it throws, which
// standard error then names. Call it in every main(), behind settle_inherited().
// It ends with 4 at once if the working directory was removed: libraries such as oneMKL end the
// process there. It ends with 3 instead of 0 if standard output could not be written.
// It also makes std::terminate() end a program that has no memory or no threads left with 3.
int run_main(const char* program, const std::function<int()>& run);

// Any exception as a Status, in one line. Lack of memory (LibTorch's too) and of threads is
// kResourceExhausted, with a remedy. Allocates nothing for std::bad_alloc but the message.
Status status_of(const std::exception& failure);

}  // namespace elixir
