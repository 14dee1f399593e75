#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/enum_names.h"
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
inline constexpr EnumName<JobPhase> kJobPhaseNames[] = {{"attaching", JobPhase::kAttaching},
                                                        {"loading", JobPhase::kLoading},
                                                        {"training", JobPhase::kTraining},
                                                        {"ending", JobPhase::kEnding}};
constexpr const char* job_phase_name(JobPhase phase) { return name_in(kJobPhaseNames, phase); }

// The use of the job's memory: at most one at a time, so nothing reads the states while a step
// writes them. During kTake, gradients of the next step are taken before its post. During kRestore,
// states come from a stored folder.
enum class Activity { kNone, kLoad, kTake, kStep, kRestore };

struct Load {
  uint32_t rank = 0;  // its grad slot holds the values
  uint32_t chunk = 0;
  uint32_t slot = 0;  // the index of that grad slot
  shm::LoadPart part = shm::LoadPart::kWhole;

  bool operator==(const Load&) const = default;
};

// The reason why a job ends before its ranks said goodbye. The rank that caused it hears `code` and
// `text`; the others hear `others_code` and `others_text`.
struct Fault {
  Code code = Code::kOk;
  uint32_t rank = kNoRank;
  std::string text;
  Code others_code = Code::kOk;
  std::string others_text;

  bool operator==(const Fault&) const = default;
};

// A fault that says the same to all ranks.
Fault fault_of_all(Code code, uint32_t rank, std::string text);

// Activities that must not start now because of a save: the states that it writes must not change,
// or its step must stay the last one.
struct Holds {
  bool loads = false;  // and restores
  bool steps = false;  // and taking gradients of the next step
};

// The activity to start now.
struct NextActivity {
  Activity activity = Activity::kNone;
  Load load;      // kLoad
  uint32_t step;  // kStep
};

// The state machine of one job: the state of each rank, the activity in flight, and the next
// activity. Ranks are counted on this node; messages name them by their number among all of the
// job. No thread, socket, clock or memory; foreign values are arguments and a violation is a
// kProtocol status. Not thread-safe.
class JobMachine {
 public:
  // `loaders` ranks load chunks, from rank 0 on. The job trains when all of them have loaded.
  // Chunks are counted here as elixird keeps them: those placed on the CPU, then the frozen ones.
  struct Chunks {
    uint32_t on_cpu = 0, frozen = 0;

    bool operator==(const Chunks&) const = default;
  };
  JobMachine(ComputeType type, uint32_t ranks, Chunks chunks, uint32_t loaders);

  JobPhase phase() const { return phase_; }
  Activity activity() const { return activity_; }
  uint32_t committed_step() const { return committed_; }
  uint32_t finished_step() const { return finished_; }
  uint32_t posted_step(uint32_t rank) const { return ranks_[rank].posted; }
  bool all_detached() const;
  // Ranks whose place nobody has taken; a timeout names them.
  std::vector<uint32_t> missing_ranks() const;

  // Takes a rank's place; `number` is its number among all ranks of the job. kInvalidArgument when
  // the place is taken or the job is past attaching.
  Status claim(uint32_t rank, uint32_t number);
  // The rank's memory is there. True when it was the last one: the job is loading, or, with no
  // chunks, training.
  bool attached(uint32_t rank);

  // Queues a LoadChunk of load.rank, while the job is loading or while every posted step is
  // finished. A chunk may come again. Returns kProtocol if that rank does not load, if the phase,
  // chunk or part is wrong, or if the slot is still in use.
  Status request_load(const Load& load);
  // Queues a restore of states from a stored folder, instead of all loads or while every posted
  // step is finished. kProtocol: neither is the case, or a restore is in progress.
  Status request_restore();
  // REQUIRES: activity() is kRestore. After a failed one, a job that is loading accepts other
  // loads.
  void finish_restore(bool restored);
  // The rank's posted_step as read from shared memory. kProtocol: it went back or too far ahead, or
  // the job is not loaded.
  Status note_posted(uint32_t rank, uint32_t posted);

  // Starts the next activity if none is in flight: a restore, else a load, else a step that every
  // rank has posted. If there is none of these, it takes gradients, when `gradients_ready`.
  NextActivity start_next(bool gradients_ready = false, const Holds& holds = {});
  // REQUIRES: activity() is kLoad.
  const Load& load_in_flight() const;
  // How many loads through the slot are over.
  uint32_t loads_taken(uint32_t rank, uint32_t slot) const { return loaders_[rank].taken[slot]; }
  // Cancels the step just started: its records or gradients break the rules. Nothing was promised.
  void refuse_step();
  // The activity in flight is over. The load that completes the chunks of all loaders makes the job
  // train; only this function counts them.
  void finish_activity();

  // The rank said goodbye. Returns a fault if others still need it.
  std::optional<Fault> detach(uint32_t rank);
  // The fault to end the job with if a rank waits for one that has gone.
  std::optional<Fault> waiting_for_detached() const;

  // Ends the job. Only the first fault counts. Nothing new starts after it, except, with
  // `finish_posted`, steps that every rank has already posted: those are promised.
  void fail(Fault fault, bool finish_posted);
  const std::optional<Fault>& fault() const { return fault_; }

  // Checks what holds between any two calls, whatever ranks wrote. It reads a few words per rank;
  // each function that changes the activity in flight ends with it.
  void check_invariant() const;

  // Equal machines continue equally. A copy is independent.
  bool operator==(const JobMachine&) const = default;

 private:
  enum class LoadState : uint8_t { kNothing, kHigh, kLoaded };
  struct Rank {
    uint32_t number = 0;  // among all of the job, once claimed
    bool claimed = false;
    bool attached = false;
    bool detached = false;
    uint32_t posted = 0;

    bool operator==(const Rank&) const = default;
  };
  struct Loader {
    std::vector<LoadState> loaded;  // by chunk, as it will be after the queued loads
    std::vector<bool> there;        // by chunk: it was loaded whole
    std::vector<bool> pending;      // by slot
    std::vector<uint32_t> taken;    // by slot
    uint32_t missing = 0;           // chunks that are not there

    bool operator==(const Loader&) const = default;
  };

  Status check_load(const Loader& loader, const Load& load) const;

  uint32_t least_posted() const;
  uint32_t greatest_posted() const;
  bool all_attached() const;

  const ComputeType type_;
  const Chunks chunks_;
  JobPhase phase_ = JobPhase::kAttaching;
  Activity activity_ = Activity::kNone;
  std::vector<Rank> ranks_;
  std::vector<Loader> loaders_;
  std::deque<Load> loads_;      // front: in flight when activity_ is kLoad
  bool finish_posted_ = false;  // meaningful when ending
  bool restore_pending_ = false;
  uint32_t committed_ = 0;
  uint32_t finished_ = 0;
  std::optional<Fault> fault_;
};

}  // namespace elixir::daemon
