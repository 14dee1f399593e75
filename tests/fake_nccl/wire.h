#pragma once

// What the ranks of a communicator share: one memfd, mapped by all of them, with a channel from
// each rank to each. The unique id says where it is (/proc/PID/fd/FD of the process that made the
// id), so nothing has a name and nothing is left behind by a rank that is killed.

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

// What a message is, in each of its pieces: both sides must mean the same.
struct MessageHead {
  Kind kind;
  uint32_t type;   // ncclDataType_t
  uint64_t bytes;  // of the whole message
  bool operator==(const MessageHead&) const = default;
  std::string name() const;
};

// One message at a time, piece by piece. Written by one rank, read by one other.
struct Channel {
  std::atomic<uint64_t>
      sent;  // pieces; release: behind what is in `piece`, with the acquire of who takes
  std::atomic<uint64_t> taken;  // release: `piece` may be written, with the acquire of who sends
  MessageHead head;
  std::byte piece[kPieceBytes];
};

struct SharedRank {
  std::atomic<int32_t> pid;  // 0: has not come yet
  char device[16];           // its address on the bus: two ranks on one are refused
};

struct Shared {
  uint64_t token;
  std::atomic<uint32_t> pulse;        // raised with every change below, and woken
  std::atomic<uint32_t> ranks;        // 0: nobody has come yet
  std::atomic<uint32_t> failed_rank;  // 1 + the rank whose collective failed; 0: none
  SharedRank rank[kMaxRanks];
  Channel channel[kMaxRanks][kMaxRanks];  // [from][to]
};

ncclUniqueId make_unique_id();

class Wire {
 public:
  // Null: the id's process is gone, or it is no id of the fake's.
  static std::unique_ptr<Wire> open(const ncclUniqueId& id);
  ~Wire();

  Shared& shared() { return *shared_; }
  Channel& channel(int from, int to) { return shared_->channel[from][to]; }

  // To wait without missing a change: read pulse(), look, await_change() if nothing was there.
  uint32_t pulse() const { return shared_->pulse.load(std::memory_order_acquire); }
  void await_change(uint32_t seen_pulse);  // returns after some milliseconds in any case
  void raise_pulse();

 private:
  explicit Wire(Shared* shared) : shared_(shared) {}
  Shared* const shared_;
};

}  // namespace fake_nccl
