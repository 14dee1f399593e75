#pragma once

// Servers that do one job after the other while simulated time runs. A Worker is one of them.
// HostMemory has three that share host memory: both directions of the link, which slow each other
// down, and elixird's workers. Time moves from event to event. Between two events nothing begins or
// ends.

#include <array>
#include <cstdint>
#include <deque>
#include <limits>

namespace elixir::planner {

inline constexpr double kNoEvent = std::numeric_limits<double>::infinity();

struct Job {
  enum class Kind : uint8_t {
    kFetch,       // a chunk into its block
    kAllGather,   // after a fetch, with collectives
    kReduce,      // a chunk's gradient among ranks
    kGradient,    // down: part of a chunk's gradient, or all of it from its block
    kPutAside,    // down: a chunk's incomplete gradient
    kBringBack,   // up: that gradient again
    kEviction,    // down: a chunk that loses its block
    kStatesUp,    // up: a swing chunk's states and gradients
    kSwing,       // a swing chunk's update on the GPU
    kStatesDown,  // down: a swing chunk's states
    kUpdate,      // a chunk's update by CPU workers
    kEarly,       // such an update into a spare slot, before the commit
    kKeepDown,    // down: activations of a region, in pieces
    kKeepUp,      // up: these again
  };
  Kind kind = Kind::kFetch;
  uint32_t chunk = 0;  // of kKeepDown and kKeepUp: the parcel
  double amount = 0;   // seconds for a worker, bytes on a link
  double latency_s = 0;
  double memory_bytes = 0;  // read from host memory and written to it by an update
  bool completes = false;   // it completes the chunk's gradient, or the parcel

  bool of_activations() const { return kind == Kind::kKeepDown || kind == Kind::kKeepUp; }
};

// Queues and the job in hand. Activations go when nothing else waits, and do not count as pushed.
struct Line {
  std::deque<Job> queue, activations;
  Job job;
  bool busy = false;
  double begin_s = 0, end_s = kNoEvent;  // the job in hand
  double done_s = 0;                     // seconds that earlier jobs took
  uint64_t pushed = 0, finished = 0;

  void push(const Job& next);
  bool waits() const { return !queue.empty() || !activations.empty(); }
  // Takes the next job in hand. REQUIRES: not busy, and a job waits.
  void begin(double now_s);
  // REQUIRES: busy, and the job ends now. The line does not know the time, so HostMemory::finish()
  // checks it.
  Job finish();
  double busy_s(double now_s) const { return busy ? done_s + now_s - begin_s : done_s; }
};

// A job takes its `amount` in seconds.
class Worker {
 public:
  Line line;

  bool start(double now_s);
};

// Bytes per second.
struct HostRates {
  double up = 0, down = 0;  // 0: takes no time
  double joint = 0;         // both together; 0: no limit
  double dram = 0;          // host memory, read and written by all; 0: no limit
};

// Both directions of the link, and elixird's workers, which update one chunk at a time. While both
// directions copy, each has half the joint limit, or what the other leaves of it. A copied byte is
// a byte of host memory. If all together would move more than host memory can, all become slower by
// the same factor (processor sharing).
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
    double left = 0, since_s = 0;  // at since_s, this much of the job's amount was left
    double rate = 0;               // since then, of the amount per second
  };

  void set_rates(double now_s);
  double alone_rate(User user) const;  // limited by nothing but the link's other direction
  double memory_rate(User user) const;
  double memory_share() const;

  const HostRates rates_;
  std::array<Side, kUsers.size()> sides_;
};

}  // namespace elixir::planner
