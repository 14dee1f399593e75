#include "client/train/operator_gate.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "base/check.h"

namespace elixir {
namespace {

constexpr unsigned kInlineGates = 4;  // more allocate
thread_local c10::SmallVector<OperatorGate::Inside, kInlineGates> insides;

}  // namespace

uint64_t OperatorGate::next_number() {
  static std::atomic<uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;  // orders nothing
}

OperatorGate::Inside& OperatorGate::of_thread() const {
  for (Inside& inside : insides) {
    if (inside.gate == number_) return inside;
  }
  // The place of one that this thread is inside of no more, if there is any.
  for (Inside& inside : insides) {
    if (inside.nothing()) return inside = {number_};
  }
  insides.push_back({number_});
  return insides.back();
}

bool OperatorGate::may_begin(Kind kind) const {
  return !closed() || !of_thread().nothing() || (kind == Kind::kOperator && scopes_ > 0);
}

void OperatorGate::pass(Kind kind, MutexLock& lock) {
  if (may_begin(kind)) return;
  ++waiting_;
  const std::chrono::nanoseconds mine = patience_;
  uint64_t ended = ended_;
  auto until = std::chrono::steady_clock::now() + mine;
  while (!may_begin(kind)) {
    if (opened_.wait_until(lock, until)) continue;
    if (ended == ended_ && operators_ + scopes_ > 0) {
      if (scopes_ > 0) patience_ = std::max(patience_, 2 * mine);
      break;
    }
    ended = ended_;
    until = std::chrono::steady_clock::now() + mine;
  }
  --waiting_;
}

void OperatorGate::begin_operator() {
  ++operators_;
  ++of_thread().operators;
}

// Torch may end one in another thread than it began in.
void OperatorGate::end(uint32_t& running, uint32_t& own) {
  if (scopes_ == 0 || &running == &scopes_) ++ended_;
  --running;
  if (own > 0) --own;
  if (operators_ + scopes_ == 0) none_.notify_all();
}

void OperatorGate::end_operator() { end(operators_, of_thread().operators); }

void OperatorGate::begin_scope() {
  if (++scopes_ == 1 && waiting_ > 0) opened_.notify_all();  // in an operator, or after patience
  ++of_thread().scopes;
}

void OperatorGate::end_scope() { end(scopes_, of_thread().scopes); }

void OperatorGate::close() {
  calls_.fetch_add(1, std::memory_order_relaxed);
  ++of_thread().calls;
}

void OperatorGate::await_none(MutexLock& lock) {
  ELIXIR_CHECK(of_thread().calls > 0, "a call that has not asked");
  while (operators_ + scopes_ > 0) none_.wait(lock);
}

void OperatorGate::open(const MutexLock&) {
  --of_thread().calls;
  if (calls_.fetch_sub(1, std::memory_order_relaxed) > 1) return;
  patience_ = first_patience_;
  opened_.notify_all();
}

}  // namespace elixir
