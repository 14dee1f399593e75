#pragma once

namespace elixir::planner::testing {

// Sanitizers slow down by factors that no promise about time can hold.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace elixir::planner::testing
