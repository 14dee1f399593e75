#pragma once

#include <string>

namespace elixir::test {

// main() of every test program. The exit code is 77, which ctest calls Skipped, with `reason` or if
// all tests that should run were skipped. Else it is gtest's. Every skip prints a line "skipped:
// NAME: why", from which scripts/test.sh makes its list.
int run_tests(int argc, char** argv, const std::string& reason = "");

}  // namespace elixir::test
