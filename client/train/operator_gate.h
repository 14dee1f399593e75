#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace elixir {

// Decides when operators and calls may use an engine's state. Operators of any thread may, several
// at a time. step() and other calls may only while no operator runs. Among many evaluating threads
// there may never be such a moment, so a waiting call has priority. From close() to open() the gate
// is closed. The call waits for the running operators and for the scopes (elixir::consistent())
// that are held.
//
// Three kinds of thread may begin operators or scopes although the gate is closed:
//   A thread that is inside of an operator or a scope already.
//   Any thread, but only operators, while a scope is held. A scope's threads look like all others,
//   and the call waits for the scope anyway.
//   A thread that has waited for `patience` while nothing ended. The operators and scopes that are
//   held may wait for this thread.
// While a scope is held, each thread of the last kind doubles the patience of later ones, until the
// gate opens. So each scope begins at some time, and so does the call that closed the gate.
//
// Used under the engine's mutex. Each function that takes a lock releases it while it waits.
class OperatorGate {
 public:
  enum class Kind { kOperator, kScope };

  // The operators, scopes and calls that a thread is inside of.
  struct Inside {
    uint64_t gate = 0;  // the gate's number; an earlier gate may have had its address
    uint32_t operators = 0, scopes = 0, calls = 0;

    bool nothing() const { return operators + scopes + calls == 0; }
  };

  explicit OperatorGate(std::chrono::nanoseconds patience = std::chrono::seconds(10))
      : first_patience_(patience), patience_(patience) {}

  const Inside& inside() const { return of_thread(); }

  // Waits until an operator or a scope of this thread may begin.
  void pass(Kind kind, MutexLock& lock);
  void begin_operator();
  void end_operator();
  void begin_scope();
  void end_scope();
  uint32_t operators() const { return operators_; }

  // Closes the gate for a call of this thread: no operator begins from now on. It needs no mutex,
  // because threads that run many operators hardly ever leave the mutex free.
  void close();
  // Waits until no operator runs. REQUIRES: close() was called, and this thread is inside of no
  // operator.
  void await_none(MutexLock& lock);
  void open(const MutexLock& lock);

  // The number of threads that wait in pass().
  uint32_t waiting() const { return waiting_; }
  // The patience of a thread that comes now.
  std::chrono::nanoseconds patience() const { return patience_; }

 private:
  static uint64_t next_number();
  Inside& of_thread() const;
  void end(uint32_t& running, uint32_t& own);
  bool closed() const { return calls_.load(std::memory_order_relaxed) > 0; }
  bool may_begin(Kind kind) const;

  const uint64_t number_ = next_number();
  const std::chrono::nanoseconds first_patience_;
  std::chrono::nanoseconds patience_;
  // Relaxed: the mutex orders what follows from it.
  std::atomic<uint32_t> calls_ = 0;
  uint32_t operators_ = 0, scopes_ = 0, waiting_ = 0;
  uint64_t ended_ = 0;  // operators and scopes; while a scope is held, scopes alone
  CondVar opened_, none_;
};

}  // namespace elixir
