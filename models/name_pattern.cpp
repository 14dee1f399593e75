#include "models/name_pattern.h"

#include <utility>

namespace elixir {

Result<NamePattern> NamePattern::compile(const std::string& flag, const std::string& expression) {
  auto pattern = std::make_unique<regex_t>();
  if (const int failure = ::regcomp(pattern.get(), expression.c_str(), REG_EXTENDED | REG_NOSUB)) {
    char why[256] = {};
    ::regerror(failure, pattern.get(), why, sizeof why);
    return error(Code::kInvalidArgument, "{} '{}' is not a regular expression: {}", flag,
                 expression, why);
  }
  return NamePattern(Compiled(pattern.release(), [](regex_t* compiled) {
    ::regfree(compiled);
    delete compiled;
  }));
}

bool NamePattern::finds(const std::string& name) const {
  ELIXIR_CHECK(pattern_ != nullptr, "moved from");
  return ::regexec(pattern_.get(), name.c_str(), 0, nullptr, 0) == 0;
}

}  // namespace elixir
