#pragma once

// Waiting for a state, not for a time: what a busy machine does late is no failure.

#include <sys/types.h>

#include <functional>

namespace elixir::test {

inline constexpr double kPatienceS = 60;  // for what must happen at some time
inline constexpr int kPatienceMs = static_cast<int>(kPatienceS * 1000);

// Asks again and again; false when the condition does not hold within the limit.
bool eventually(const std::function<bool()>& condition, double limit_s = kPatienceS);

// Whether the process has ended; one that nobody has reaped yet has.
bool gone(pid_t pid);
// Whether its first thread sleeps, as in a futex or a poll.
bool asleep(pid_t pid);

}  // namespace elixir::test
