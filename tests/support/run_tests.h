#pragma once

#include <string>

namespace elixir::test {

// main() of every test program. The exit code says what gtest's alone does not: with `reason`, or
// where each test that was to run was skipped, it is 77, which ctest calls Skipped. Every skip is a
// line "skipped: NAME: why" of the output, of which scripts/test.sh makes its list.
int run_tests(int argc, char** argv, const std::string& reason = "");

}  // namespace elixir::test
