#pragma once

// What does one thing after the other while simulated time runs: a worker, and what shares host
// memory: the two directions of the link, which slow one another, and elixird's workers. Time moves
// from event to event; between two of them nothing begins or ends.

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
    kStatesUp,    // a swing chunk's, and its gradients
    kSwing,       // its update on the GPU
    kStatesDown,  // and its states back
    kUpdate,      // of a chunk, by CPU workers
    kEarly,       // the same into a spare slot, before the commit
  };
  Kind kind = Kind::kFetch;
  uint32_t chunk = 0;
  double amount = 0;  // seconds of a worker, bytes on a link
  double latency_s = 0;
  double memory_bytes = 0;  // of an update: read from host memory and written to it
  bool completes = false;   // the chunk's gradient
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
  // REQUIRES: busy, and its end is now; the line does not know the time (HostMemory::finish does).
  Job finish();
  double busy_s(double now_s) const { return busy ? done_s + now_s - begin_s : done_s; }
};

// Jobs take as long as they say.
class Worker {
 public:
  Line line;

  bool start(double now_s);
};

// Bytes a second.
struct HostRates {
  double up = 0, down = 0;  // 0: takes no time
  double joint = 0;         // both together; 0: no limit
  double dram = 0;          // of host memory, what all read and write; 0: no limit
};

// Both directions of the link, and elixird's workers, who update one chunk at a time. While both
// directions copy, each has half the joint limit, or what the other leaves of it. A byte copied is
// a byte of host memory; where all together would move more than it does, all are slower by the
// same factor (processor sharing).
class HostMemory {
 public:
  enum User { kUp, kDown, kUpdate };

  explicit HostMemory(const HostRates& rates) : rates_(rates) {}

  Line& line(User user) { return sides_[user].line; }
  const Line& line(User user) const { return sides_[user].line; }

  bool start(double now_s);
  Job finish(User user, double now_s);

 private:
  static constexpr std::array kUsers = {kUp, kDown, kUpdate};

  struct Side {
    Line line;
    double left = 0, since_s = 0;  // of the amount of the job in hand: so much at since_s
    double rate = 0;               // since then, of the amount a second
  };

  void set_rates(double now_s);
  double alone_rate(User user) const;  // but for the other direction of the link
  double memory_rate(User user) const;
  double memory_share() const;

  const HostRates rates_;
  std::array<Side, kUsers.size()> sides_;
};

}  // namespace elixir::planner
