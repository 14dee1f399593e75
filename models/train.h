#pragma once

namespace elixir {

// The main function of a program that trains a model through elixird. models/train_options.h has
// its options. Every rank runs it; rank 0 reports. `program` is its name in --help, errors and the
// log. Returns the exit code.
int train_main(const char* program, int argc, const char* const* argv);

}  // namespace elixir
