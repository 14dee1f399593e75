#pragma once

// Waits for a state, not for a time: a busy machine may be late, and that is no failure.

#include <sys/types.h>

#include <functional>

namespace elixir::test {

inline constexpr double kPatienceS = 240;  // for what must happen at some time
inline constexpr int kPatienceMs = static_cast<int>(kPatienceS * 1000);

// Asks again and again; false when the condition does not hold within the limit.
bool eventually(const std::function<bool()>& condition, double limit_s = kPatienceS);

// Tries with a longer limit until an attempt succeeds. Use it if something must come before a clock
// under test ends: on a busy machine no limit is surely long enough. False: none did.
bool widen(double limit_s, const std::function<bool(double limit_s)>& attempt);

// Whether the process has ended, even if nobody has reaped it yet.
bool gone(pid_t pid);
// Whether a thread, or the first thread of a process, sleeps, as in a futex or a poll.
bool asleep(pid_t id);

}  // namespace elixir::test
