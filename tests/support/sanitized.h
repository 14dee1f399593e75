#pragma once

// Whether the build has the address or the thread sanitizer, where instructions take several times
// as long. Tests of many cases then run fewer cases, which still cover every value. No test checks
// a time there.

namespace elixir {

// GCC defines macros, clang has features.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ELIXIR_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ELIXIR_SANITIZED
#endif

#ifdef ELIXIR_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace elixir
