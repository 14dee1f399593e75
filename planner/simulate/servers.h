#pragma once

// What does one thing after the other while simulated time runs: a worker, and the two directions
// of a link that slow one another. Time moves from event to event; between two of them nothing
// begins or ends.

#include <array>
#include <cstdint>
#include <deque>
#include <limits>

namespace elixir::planner {

inline constexpr double kNoEvent = std::numeric_limits<double>::infinity();

struct Job {
  enum class Kind : uint8_t {
    kFetch,       // a chunk into its block
    kAllGather,   // behind it, with collectives
    kReduce,      // a chunk's gradient among ranks
    kGradient,    // part of a chunk's gradient, or all of it out of its block, down
    kPutAside,    // a chunk's gradient that is not complete, down
    kBringBack,   // and up again
    kEviction,    // a chunk that loses its block, down
    kStatesUp,    // for an update on the GPU
    kStatesDown,  // and back
    kUpdate,      // of a chunk, by CPU workers
  };
  Kind kind = Kind::kFetch;
  uint32_t chunk = 0;
  double amount = 0;  // seconds of a worker, bytes on a link
  double latency_s = 0;
  bool completes = false;  // the chunk's gradient
};

// A queue and what is in hand.
struct Line {
  std::deque<Job> queue;
  Job job;
  bool busy = false;
  double begin_s = 0, end_s = kNoEvent;  // of the job in hand
  double done_s = 0;                     // that earlier jobs took
  uint64_t pushed = 0, finished = 0;

  void push(const Job& next);
  // The next job is in hand from now on. REQUIRES: not busy, and one is waiting.
  void begin(double now_s);
  // REQUIRES: busy, and its end is now; the line does not know the time (Link::finish does).
  Job finish();
  double busy_s(double now_s) const { return busy ? done_s + now_s - begin_s : done_s; }
};

// Jobs take as long as they say.
class Worker {
 public:
  Line line;

  bool start(double now_s);
};

struct LinkRates {
  double up = 0, down = 0;  // bytes a second; 0: takes no time
  double joint = 0;         // both together; 0: no limit
};

// While both directions copy, each has half the joint limit, or what the other leaves of it.
class Link {
 public:
  enum Direction { kUp, kDown };

  explicit Link(const LinkRates& rates) : rates_(rates) {}

  Line& line(Direction direction) { return sides_[direction].line; }
  const Line& line(Direction direction) const { return sides_[direction].line; }

  bool start(double now_s);
  Job finish(Direction direction, double now_s);

 private:
  struct Side {
    Line line;
    double left_bytes = 0, since_s = 0;  // of the job in hand: at since_s so much was left
    double rate = 0;                     // since then
  };

  void set_rates(double now_s);
  double rate(Direction direction) const;

  const LinkRates rates_;
  std::array<Side, 2> sides_;
};

}  // namespace elixir::planner
