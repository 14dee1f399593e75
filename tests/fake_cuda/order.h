#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake_cuda {

// For each stream, by its number: how many of its works are known to be done before the next one.
// Mattern, Virtual Time and Global States of Distributed Systems, 1989.
class VectorClock {
 public:
  uint64_t of(size_t stream) const { return stream < known_.size() ? known_[stream] : 0; }
  void set(size_t stream, uint64_t works) {
    if (stream >= known_.size()) known_.resize(stream + 1);
    known_[stream] = works;
  }
  void join(const VectorClock& other) {
    if (other.known_.size() > known_.size()) known_.resize(other.known_.size());
    for (size_t i = 0; i < other.known_.size(); ++i) {
      known_[i] = std::max(known_[i], other.known_[i]);
    }
  }

 private:
  std::vector<uint64_t> known_;
};

// The works that a stream, an event or the host's threads know to be done before them.
struct Order {
  VectorClock device;
  // For host memory, any wait of any thread counts, too. Threads may tell each other of it in ways
  // that the fake cannot see.
  VectorClock host;

  void join(const Order& other) {
    device.join(other.device);
    host.join(other.host);
  }
};

// The clock of a host thread.
struct HostClock {
  int64_t now_ns = 0;  // virtual
  Order order;
};

}  // namespace fake_cuda
