#pragma once

#include <regex.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace elixir {

// A POSIX extended regular expression for names of parameters. It uses glibc's implementation,
// because std::regex takes exponential time in the length of the name for some expressions.
class NamePattern {
 public:
  // kInvalidArgument, with the flag's name, if `expression` is not valid.
  static Result<NamePattern> compile(const std::string& flag, const std::string& expression);

  bool finds(const std::string& name) const;

 private:
  using Compiled = std::unique_ptr<regex_t, void (*)(regex_t*)>;
  explicit NamePattern(Compiled pattern) : pattern_(std::move(pattern)) {}

  Compiled pattern_;
};

}  // namespace elixir
