#pragma once

// Under the address or the thread sanitizer, where an instruction takes several times as long:
// tests of many cases take fewer there, in which every value of theirs is met, and none holds a
// time.

namespace elixir {

// GCC says it by macros, clang by features.
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
