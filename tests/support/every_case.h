#pragma once

// Environment variables for tests that take a sample of their cases by default.

#include <cstdint>
#include <cstdlib>

namespace elixir {

// Whether all cases must run, as in the nightly parts.
inline bool every_case() { return std::getenv("ELIXIR_EVERY_CASE") != nullptr; }

inline uint64_t number_setting(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

}  // namespace elixir
