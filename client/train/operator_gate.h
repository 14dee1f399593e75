#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.h"

namespace elixir {

// Who may use what an engine holds: operators of any thread, several at a time; step() and other
// calls only while no operator runs. Among many evaluating threads there may never be such a
// moment, so a call that asks comes first: from close() on no operator begins until open(), but for
// threads that are inside of one already, or in a scope (elixir::consistent()), for whose end the
// call waits.
//
// Under the engine's mutex, which each function that takes a lock gives back while it waits.
class OperatorGate {
 public:
  // Operators and scopes of this thread.
  struct Inside {
    const OperatorGate* gate = nullptr;
    uint32_t operators = 0, scopes = 0, calls = 0;

    bool nothing() const { return operators + scopes + calls == 0; }
  };
  const Inside& inside() const { return of_thread(); }

  // Before an operator or a scope of this thread begins: waits while the gate is closed. An
  // operator may wait for one of another thread which waits here; so after ten seconds in which
  // none has ended, it is let through.
  void pass(MutexLock& lock);
  void begin_operator();
  void end_operator();
  void begin_scope();
  void end_scope();
  uint32_t operators() const { return operators_; }

  // A call of this thread asks, without the mutex: for that threads that run many operators leave
  // hardly a moment. From here on none begins.
  void close();
  // Waits until none runs. REQUIRES: close(), and this thread is inside of none.
  void await_none(MutexLock& lock);
  void open(const MutexLock& lock);

  // Threads that wait in pass().
  uint32_t waiting() const { return waiting_; }

 private:
  Inside& of_thread() const;
  void end(uint32_t& running, uint32_t& own);
  bool closed() const { return calls_.load(std::memory_order_relaxed) > 0; }

  // Relaxed: the mutex orders what follows from it.
  std::atomic<uint32_t> calls_ = 0;
  uint32_t operators_ = 0, scopes_ = 0, waiting_ = 0;
  uint64_t ended_ = 0;
  CondVar opened_, none_;
};

}  // namespace elixir
