#pragma once

// The memory that the ranks of a communicator share: one memfd, mapped by all of them, with a
// channel from each rank to each. The unique id says where it is (/proc/PID/fd/FD of the process
// that made the id). So nothing has a name, and a killed rank leaves nothing behind.

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fake_nccl {

inline constexpr int kMaxRanks = 16;
inline constexpr size_t kPieceBytes = 256 << 10;

enum class Kind : uint32_t {
  kAllGather = 1,
  kReduceScatter,
  kAllReduce,
};
const char* name_of(Kind kind);

// Describes a message, in each of its pieces; both sides must agree on it.
struct MessageHead {
  Kind kind;
  uint32_t type;   // ncclDataType_t
  uint64_t bytes;  // length of the whole message
  bool operator==(const MessageHead&) const = default;
  std::string name() const;
};

// One message at a time, piece by piece. Written by one rank, read by one other.
struct Channel {
  // pieces; stored with release after `piece` is written; pairs with the receiver's acquire load
  std::atomic<uint64_t> sent;
  // pieces; stored with release after `piece` is read; pairs with the sender's acquire load
  std::atomic<uint64_t> taken;
  MessageHead head;
  std::byte piece[kPieceBytes];
};

struct SharedRank {
  std::atomic<int32_t> pid;  // 0: has not come yet
  char device[16];           // its bus address; two ranks on one device are an error
};

struct Shared {
  uint64_t token;
  std::atomic<uint32_t> pulse;        // raised at every change below, with a wake-up
  std::atomic<uint32_t> ranks;        // 0: nobody has come yet
  std::atomic<uint32_t> failed_rank;  // 1 + the rank whose collective failed; 0: none
  SharedRank rank[kMaxRanks];
  Channel channel[kMaxRanks][kMaxRanks];  // [from][to]
};

ncclUniqueId make_unique_id();

class Wire {
 public:
  // Null: the id's process is gone, or the fake did not make the id.
  static std::unique_ptr<Wire> open(const ncclUniqueId& id);
  ~Wire();

  Shared& shared() { return *shared_; }
  Channel& channel(int from, int to) { return shared_->channel[from][to]; }

  // To wait without missing a change: read pulse(), look, and call await_change() if nothing was
  // there.
  uint32_t pulse() const { return shared_->pulse.load(std::memory_order_acquire); }
  void await_change(uint32_t seen_pulse);  // returns after some milliseconds in any case
  void raise_pulse();

 private:
  explicit Wire(Shared* shared) : shared_(shared) {}
  Shared* const shared_;
};

}  // namespace fake_nccl
