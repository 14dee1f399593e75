#pragma once

#include <cstdint>

namespace elixir::daemon {

// Descriptors of elixird without a trainer: sockets, ZeroMQ's threads, log, lock.
inline constexpr uint64_t kIdleDescriptors = 24;
// The most per rank: five memfds and three read-only twins, its attach socket and the pidfd of its
// process, its ZeroMQ connection, its parameter table.
inline constexpr uint64_t kDescriptorsPerRank = 12;
// The part of them that is made once the rank has been admitted.
inline constexpr uint64_t kMemfdsPerRank = 8;
// With swing chunks a rank has a memfd and two twins more: eight such ranks count as eleven.
constexpr uint64_t counted_ranks(uint64_t ranks, bool swings) {
  return swings ? ranks + (3 * ranks + 7) / 8 : ranks;
}

inline constexpr const char* kDescriptorRemedy = "ulimit -n, LimitNOFILE= in the unit";

// The number of descriptors that this process may have, and its division.
class DescriptorLimit {
 public:
  // Raises the soft limit to the hard one: the usual soft limit of 1024 is short for many ranks.
  static DescriptorLimit raise();
  explicit DescriptorLimit(uint64_t limit) : limit_(limit) {}

  uint64_t limit() const { return limit_; }
  // Jobs and strangers do not get these. They are for files that are opened now and then, and for
  // connections that only get an error.
  uint64_t spare() const;
  bool enough_for(uint64_t ranks) const { return ranks <= most_ranks(); }
  uint64_t most_ranks() const;
  // A new connection is rejected if its descriptor would be this one or a greater one, while this
  // many ranks wait for their memfds.
  uint64_t first_refused(uint64_t ranks_without_memory) const;

 private:
  uint64_t limit_;
};

}  // namespace elixir::daemon
