#pragma once

// Under the address or the thread sanitizer, where an instruction takes several times as long:
// tests of many cases take fewer there, in which every value of theirs is met, and none holds a
// time.

namespace elixir {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace elixir
