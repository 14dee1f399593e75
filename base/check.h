#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

// A bug, not a failed world: always on, prints the condition and aborts.
#define ELIXIR_CHECK(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fputs(                                                                            \
          fmt::format("{}:{}: bug in Elixir: {}: ", __FILE__, __LINE__, #condition).c_str(), \
          stderr);                                                                           \
      std::fputs(fmt::format(__VA_ARGS__).c_str(), stderr);                                  \
      std::fputc('\n', stderr);                                                              \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
