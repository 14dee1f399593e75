#pragma once

namespace elixir {

// A program that trains a model through elixird, as its command line says (models/train_options.h).
// Every rank runs it; rank 0 reports. `program` is what --help, errors and the log call it. Returns
// the exit code.
int train_main(const char* program, int argc, const char* const* argv);

}  // namespace elixir
