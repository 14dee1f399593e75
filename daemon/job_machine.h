#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "shm/messages.h"

namespace elixir::daemon {

inline constexpr uint32_t kNoRank = UINT32_MAX;

// A trainer may be two steps ahead of elixird, and the loop may learn of a finished step later
// than the trainer does.
inline constexpr uint32_t kMaxStepsAhead = 3;
static_assert(kMaxStepsAhead < shm::kStepRing);

// attaching -> loading -> training -> ending. Ending can follow any of them.
enum class JobPhase { kAttaching, kLoading, kTraining, kEnding };
const char* job_phase_name(JobPhase phase);

// What the job's memory is being used for. At most one at a time, so nothing reads the states
// while a step writes them.
enum class Activity { kNone, kLoad, kStep, kChecksum };

struct Load {
  uint32_t chunk = 0;
  shm::LoadPart part = shm::LoadPart::kWhole;
  bool last = false;
  uint64_t request_id = 0;
};

struct ChecksumRequest {
  uint32_t rank = 0;
  uint64_t request_id = 0;
};

// Why a job ends before its ranks said goodbye. The rank that caused it hears `code` and `text`,
// the others `others_code` and `others_text`.
struct Fault {
  Code code = Code::kOk;
  uint32_t rank = kNoRank;
  std::string text;
  Code others_code = Code::kOk;
  std::string others_text;
};

// What to start now.
struct NextActivity {
  Activity activity = Activity::kNone;
  Load load;      // kLoad
  uint32_t step;  // kStep
};

// One job: which rank is where, what is in flight, what comes next. No thread, socket, clock or
// memory; foreign values are arguments and a violation is a kProtocol status. Not thread-safe.
class JobMachine {
 public:
  JobMachine(ComputeType type, uint32_t ranks, uint32_t n_chunks);

  JobPhase phase() const { return phase_; }
  Activity activity() const { return activity_; }
  uint32_t committed_step() const { return committed_; }
  uint32_t finished_step() const { return finished_; }
  uint32_t posted_step(uint32_t rank) const { return ranks_[rank].posted; }
  bool all_detached() const;
  // Ranks whose place nobody has taken: what a timeout names.
  std::vector<uint32_t> missing_ranks() const;

  // Takes a rank's place. kInvalidArgument when it is taken or the job is past attaching.
  Status claim(uint32_t rank);
  // The rank's memory is there. True when it was the last one: the job is loading.
  bool attached(uint32_t rank);

  // A LoadChunk of `rank`, queued. kProtocol: not rank 0, wrong phase, chunk or part, or the
  // chunk's slot still in use.
  Status request_load(uint32_t rank, const Load& load);
  // The rank's posted_step as read from shared memory. kProtocol: it went back, too far ahead, or
  // the job is not loaded.
  Status note_posted(uint32_t rank, uint32_t posted);
  // kProtocol before the job is loaded.
  Status request_checksum(uint32_t rank, uint64_t request_id);

  // Starts the next activity if none is in flight: a load, else a step that every rank has posted,
  // else, when every posted step has finished, a checksum.
  NextActivity start_next();
  // REQUIRES: activity() is kLoad.
  const Load& load_in_flight() const { return loads_.front(); }
  // The step just started will not be: its records or gradients break the rules. Nothing of it has
  // been done.
  void refuse_step();
  // The activity in flight is over. A last load makes the job train.
  void finish_activity();
  // Checksum requests that the checksum just made answers.
  std::vector<ChecksumRequest> take_checksum_requests();

  // The rank said goodbye. A fault when others still need it.
  std::optional<Fault> detach(uint32_t rank);
  // A rank that waits for one that has gone: the fault to end the job with.
  std::optional<Fault> waiting_for_detached() const;

  // The job ends. Only the first fault counts; nothing new starts after it, but for the steps that
  // every rank has posted already when `finish_posted`: those are promised.
  void fail(Fault fault, bool finish_posted);
  const std::optional<Fault>& fault() const { return fault_; }

 private:
  enum class LoadState : uint8_t { kNothing, kHigh, kLoaded };
  struct Rank {
    bool claimed = false;
    bool attached = false;
    bool detached = false;
    uint32_t posted = 0;
  };

  uint32_t least_posted() const;
  uint32_t greatest_posted() const;

  const ComputeType type_;
  JobPhase phase_ = JobPhase::kAttaching;
  Activity activity_ = Activity::kNone;
  std::vector<Rank> ranks_;
  std::vector<LoadState> loaded_;   // by chunk, as it will be after the queued loads
  std::vector<bool> load_pending_;  // by chunk
  std::deque<Load> loads_;          // front: in flight when activity_ is kLoad
  bool last_load_seen_ = false;
  bool finish_posted_ = false;  // meaningful when ending
  std::vector<ChecksumRequest> checksums_;
  uint32_t committed_ = 0;
  uint32_t finished_ = 0;
  std::optional<Fault> fault_;
};

}  // namespace elixir::daemon
