#pragma once

// A command line of elixir-train, as parse_train_options() takes it.

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "models/train_options.h"
#include "tests/support/matchers.h"

namespace elixir {

struct Parsed {
  int exit_code = 0;  // -1: the program continues
  TrainOptions options;
  std::string output, errors;

  std::vector<std::string> lines() const {  // the lines of `errors`
    std::istringstream text(errors);
    std::vector<std::string> all;
    for (std::string line; std::getline(text, line);) all.push_back(line);
    return all;
  }
};

// Parses flags whose words have no spaces.
inline Parsed parse(const std::string& flags) {
  std::istringstream words(flags);
  std::vector<std::string> all(std::istream_iterator<std::string>(words), {});
  std::vector<const char*> arguments = {"train_gpt2"};
  for (const std::string& word : all) arguments.push_back(word.c_str());
  Parsed parsed;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  parsed.exit_code = parse_train_options("train_gpt2", "Trains", static_cast<int>(arguments.size()),
                                         arguments.data(), parsed.options);
  parsed.output = ::testing::internal::GetCapturedStdout();
  parsed.errors = ::testing::internal::GetCapturedStderr();
  return parsed;
}

}  // namespace elixir
