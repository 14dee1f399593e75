#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace elixir {

struct BenchRun {
  int exit_code = -1;
  std::string output;
};

// Runs a benchmark with arguments through a shell.
inline BenchRun run_bench(const std::string& command) {
  BenchRun run;
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    run.output.append(buffer.data(), bytes);
  }
  run.exit_code = WEXITSTATUS(::pclose(pipe));
  return run;
}

}  // namespace elixir
