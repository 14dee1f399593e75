#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.h"

namespace elixir {

// Decides who may use the state of an engine. Operators of any thread may, several at a time;
// step() and other calls may only while no operator runs. With many evaluating threads there may
// never be such a moment, so a call has priority: from close() to open() no operator begins.
// Threads inside an operator or a scope (elixir::consistent()) are exempt, and the call waits for
// their end.
//
// Used under the engine's mutex. Functions that take a lock release it while they wait.
class OperatorGate {
 public:
  // Operators and scopes of this thread.
  struct Inside {
    const OperatorGate* gate = nullptr;
    uint32_t operators = 0, scopes = 0, calls = 0;

    bool nothing() const { return operators + scopes + calls == 0; }
  };
  const Inside& inside() const { return of_thread(); }

  // Call it before an operator or a scope of this thread begins: it waits while the gate is closed.
  // An operator may wait for another thread's operator that waits here. So a waiter may pass after
  // ten seconds in which no operator has ended.
  void pass(MutexLock& lock);
  void begin_operator();
  void end_operator();
  void begin_scope();
  void end_scope();
  uint32_t operators() const { return operators_; }

  // A call of this thread closes the gate: no operator begins from now on. It needs no mutex,
  // because threads that run many operators hardly ever leave it free.
  void close();
  // Waits until no operator runs. REQUIRES: close(), and this thread is inside of none.
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
