#include "planner/simulate/servers.h"

#include <algorithm>

#include "base/check.h"

namespace elixir::planner {

void Line::push(const Job& next) {
  queue.push_back(next);
  ++pushed;
}

void Line::begin(double now_s) {
  ELIXIR_CHECK(!busy && !queue.empty(), "{} jobs wait while one is {}in hand", queue.size(),
               busy ? "" : "not ");
  job = queue.front();
  queue.pop_front();
  busy = true;
  begin_s = now_s;
}

Job Line::finish() {
  ELIXIR_CHECK(busy && end_s >= begin_s, "a job from {} s to {} s", begin_s, end_s);
  done_s += end_s - begin_s;
  busy = false;
  end_s = kNoEvent;
  ++finished;
  return job;
}

bool Worker::start(double now_s) {
  if (line.busy || line.queue.empty()) return false;
  line.begin(now_s);
  line.end_s = now_s + line.job.amount;
  return true;
}

bool Link::start(double now_s) {
  bool started = false;
  for (Side& side : sides_) {
    if (side.line.busy || side.line.queue.empty()) continue;
    side.line.begin(now_s);
    side.left_bytes = side.line.job.amount;
    side.since_s = now_s + side.line.job.latency_s;
    side.rate = -1;  // none yet
    started = true;
  }
  if (started) set_rates(now_s);
  return started;
}

Job Link::finish(Direction direction, double now_s) {
  ELIXIR_CHECK(sides_[direction].line.end_s <= now_s, "a copy ends at {} s, and it is {} s",
               sides_[direction].line.end_s, now_s);
  const Job job = sides_[direction].line.finish();
  // With another copy behind this one the direction stays busy for the other.
  if (sides_[direction].line.queue.empty()) set_rates(now_s);
  return job;
}

double Link::rate(Direction direction) const {
  const double own = direction == kUp ? rates_.up : rates_.down;
  if (rates_.joint == 0) return own;
  const Direction beside = direction == kUp ? kDown : kUp;
  const double other = beside == kUp ? rates_.up : rates_.down;
  const Line& line = sides_[beside].line;
  // A direction without a limit leaves the other its half.
  const double left = other == 0 ? 0 : rates_.joint - other;
  const bool shared = line.busy || !line.queue.empty();
  const double share = shared ? std::max(rates_.joint / 2, left) : rates_.joint;
  return own == 0 ? share : std::min(own, share);
}

// Ends move when the other direction begins or ends.
void Link::set_rates(double now_s) {
  for (const Direction direction : {kUp, kDown}) {
    Side& side = sides_[direction];
    const double now_rate = rate(direction);
    if (!side.line.busy || side.rate == now_rate) continue;
    if (now_s > side.since_s) {
      side.left_bytes = std::max(0.0, side.left_bytes - (now_s - side.since_s) * side.rate);
      side.since_s = now_s;
    }
    side.rate = now_rate;
    const double bytes_s = now_rate > 0 ? side.left_bytes / now_rate : 0;
    side.line.end_s = side.since_s + bytes_s;
  }
}

}  // namespace elixir::planner
