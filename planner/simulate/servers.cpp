#include "planner/simulate/servers.h"

#include <algorithm>

#include "base/check.h"

namespace elixir::planner {

void Line::push(const Job& next) {
  if (next.of_activations()) {
    activations.push_back(next);
    return;
  }
  queue.push_back(next);
  ++pushed;
}

void Line::begin(double now_s) {
  ELIXIR_CHECK(!busy && waits(), "{} jobs wait while one is {}in hand", queue.size(),
               busy ? "" : "not ");
  std::deque<Job>& next = queue.empty() ? activations : queue;
  job = next.front();
  next.pop_front();
  busy = true;
  begin_s = now_s;
}

Job Line::finish() {
  ELIXIR_CHECK(busy && end_s >= begin_s, "a job from {} s to {} s", begin_s, end_s);
  done_s += end_s - begin_s;
  busy = false;
  end_s = kNoEvent;
  if (!job.of_activations()) ++finished;
  return job;
}

bool Worker::start(double now_s) {
  if (line.busy || line.queue.empty()) return false;
  line.begin(now_s);
  line.end_s = now_s + line.job.amount;
  return true;
}

bool HostMemory::start(double now_s) {
  bool started = false;
  for (Side& side : sides_) {
    if (side.line.busy || !side.line.waits()) continue;
    side.line.begin(now_s);
    side.left = side.line.job.amount;
    side.since_s = now_s + side.line.job.latency_s;
    side.rate = -1;  // none yet
    started = true;
  }
  if (started) set_rates(now_s);
  return started;
}

Job HostMemory::finish(User user, double now_s) {
  ELIXIR_CHECK(sides_[user].line.end_s <= now_s, "a job ends at {} s, and it is {} s",
               sides_[user].line.end_s, now_s);
  const Job job = sides_[user].line.finish();
  // With another job behind this one its user stays busy for the others.
  if (!sides_[user].line.waits()) set_rates(now_s);
  return job;
}

double HostMemory::alone_rate(User user) const {
  if (user == kUpdate) return 1;  // a second's work a second
  const double own = user == kUp ? rates_.up : rates_.down;
  if (rates_.joint == 0) return own;
  const User beside = user == kUp ? kDown : kUp;
  const double other = beside == kUp ? rates_.up : rates_.down;
  const Line& line = sides_[beside].line;
  // A direction without a limit leaves the other its half.
  const double left = other == 0 ? 0 : rates_.joint - other;
  const bool shared = line.busy || line.waits();
  const double share = shared ? std::max(rates_.joint / 2, left) : rates_.joint;
  return own == 0 ? share : std::min(own, share);
}

// Bytes a second that it would move if host memory had no limit. What takes no time takes none.
double HostMemory::memory_rate(User user) const {
  const Line& line = sides_[user].line;
  if (!line.busy) return 0;
  if (user != kUpdate) return alone_rate(user);
  return line.job.amount > 0 ? line.job.memory_bytes / line.job.amount : 0;
}

double HostMemory::memory_share() const {
  if (rates_.dram == 0) return 1;
  double wanted = 0;
  for (const User user : kUsers) wanted += memory_rate(user);
  return wanted > rates_.dram ? rates_.dram / wanted : 1;
}

// Ends move when another user begins or ends.
void HostMemory::set_rates(double now_s) {
  const double share = memory_share();
  for (const User user : kUsers) {
    Side& side = sides_[user];
    const double now_rate = share * alone_rate(user);
    if (!side.line.busy || side.rate == now_rate) continue;
    if (now_s > side.since_s) {
      side.left = std::max(0.0, side.left - (now_s - side.since_s) * side.rate);
      side.since_s = now_s;
    }
    side.rate = now_rate;
    const double left_s = now_rate > 0 ? side.left / now_rate : 0;
    side.line.end_s = side.since_s + left_s;
  }
}

}  // namespace elixir::planner
