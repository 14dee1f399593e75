#pragma once

// Lets a program end a wait for elixird or for other ranks: set_interrupt_check() in
// client/elixir.h.

#include <cstdint>
#include <functional>

#include "base/mutex.h"

namespace elixir {

// Sets the function that check_interrupt() calls; an empty one removes it. REQUIRES: no thread is
// in check_interrupt().
void set_interrupt(std::function<void()> check);

// A loop that waits calls this in each of its rounds, which last at most kInterruptRoundMs. It
// calls the function at most ten times a second in a thread, and throws what that throws.
constexpr int kInterruptRoundMs = 100;
void check_interrupt();
// A round of a wait for `changed`: ends when it is signalled, or after kInterruptRoundMs with a
// check_interrupt(), which holds no lock.
void wait_round(CondVar& changed, MutexLock& lock);
// How often the function has thrown.
uint64_t interrupts();

}  // namespace elixir
