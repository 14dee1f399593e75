#pragma once

// Waiting for a state, not for a time: what a busy machine does late is no failure.

#include <sys/types.h>

#include <functional>

namespace elixir::test {

inline constexpr double kPatienceS = 240;  // for what must happen at some time
inline constexpr int kPatienceMs = static_cast<int>(kPatienceS * 1000);

// Asks again and again; false when the condition does not hold within the limit.
bool eventually(const std::function<bool()>& condition, double limit_s = kPatienceS);

// Tries with a longer limit until an attempt succeeds: where something must come before a clock
// under test ends, no limit is long enough for sure on a busy machine. False: none did.
bool widen(double limit_s, const std::function<bool(double limit_s)>& attempt);

// Whether the process has ended; one that nobody has reaped yet has.
bool gone(pid_t pid);
// Whether the thread, or the first one of the process, sleeps, as in a futex or a poll.
bool asleep(pid_t id);

}  // namespace elixir::test
