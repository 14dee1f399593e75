#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/grad_tracker.h"
#include "daemon/job_machine.h"

namespace elixir::testing {

// A job in which every order of events can be tried. It has JobMachine and GradTracker as elixird
// has them, joined by the logic of daemon::Job (without memory, records and numbers). Its ranks are
// honest and make one store at a time. A state is a value; equal states continue equally.

// An invariant that does not hold.
struct ModelViolation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ModelOptions {
  uint32_t ranks = 2, chunks = 2, steps = 2;  // at most the ranks and chunks of ModelState
  std::array<uint32_t, 2> rounds = {2, 2};    // backward passes per step, by rank
  std::array<uint32_t, 2> dropped = {0, 0};   // passes before these, dropped by zero_grad()
  // By rank and chunk, one bit per pass that counts: whether the rank has gradients of the chunk in
  // it. For a chunk without any, the rank publishes zeros before its post.
  std::array<std::array<uint8_t, 2>, 2> passes = {{{0xff, 0xff}, {0xff, 0xff}}};
  shm::StepRules rules = {};
  bool waits = true;          // ranks say which sum they wait for, as trainers do
  uint32_t skipped_step = 0;  // the step that the verdict skips; 0: none
  bool dies = false;          // a rank may die at any time
  bool leaves = false;        // a rank may say goodbye at any time

  // Negative controls: false leaves out a part of elixird.
  bool ticks = true;               // ticks make up for lost doorbells
  bool post_reads_records = true;  // a rank's records are read before it counts as posted
  bool reads_ahead_again = true;   // reads records of a later step again in that step
  bool sums_without_gone = true;   // sums do not wait for a rank that said goodbye
  bool tells_discards = true;      // tells GradTracker how often ranks have discarded
  bool sums_awaited = true;        // makes sums when all ranks wait for one another
};

// An event, with its rank and chunk if it has them.
struct ModelEvent {
  enum class Kind : uint8_t {
    kStore,  // the rank's next store: a publication, a request for a sum, a post, or its goodbye
    // Doorbells. They may come at any time and too often, or never, if this event does not happen.
    kRingsGrads,
    kRingsPost,
    kTick,
    kWorker,      // does the chunk's task
    kWorkDone,    // elixird hears that all tasks are done
    kSumsFilled,  // the memory for sums is there
    kDies,
    kLeaves
  };
  Kind kind = Kind::kTick;
  uint8_t rank = 0, chunk = 0;

  // Whether the event must come. Doorbells may get lost, and nobody has to die.
  bool comes() const {
    return kind == Kind::kStore || (kind >= Kind::kTick && kind <= Kind::kSumsFilled);
  }
  std::string text() const;
};

struct ModelState {
  static constexpr uint32_t kRanks = 2, kChunks = 2;

  struct Record {  // shm::GradRecord
    uint8_t step = 0, micro_step = 0, revision = 0, to_sum = 0, discards = 0;
    auto operator<=>(const Record&) const = default;
  };
  struct Rank {
    // Its script: what it does next.
    uint8_t step = 1, round = 1, chunks_done = 0, discards = 0;
    std::array<uint8_t, kChunks> sum_step = {};  // step of its last request for a sum
    bool gone = false;                           // its socket is closed
    // Words that the rank has written.
    uint8_t posted = 0, publications = 0, awaited = 0;
    std::array<Record, kChunks> records;
    // Words that elixird has written about its gradients.
    std::array<uint8_t, kChunks> grad_taken = {};
    // daemon::Session
    uint8_t noted_publications = 0, noted_step = 0;
    bool noted_ahead = false;
    auto operator<=>(const Rank&) const = default;
  };
  struct Task {  // daemon::ChunkTask, by chunk
    bool in_flight = false, sum_up = false, begins_sum = false, of_sums = false, squares = false,
         update = false;
    uint8_t ranks = 0, dropped = 0;
    std::array<uint8_t, kRanks> revisions = {}, discards = {};
    auto operator<=>(const Task&) const = default;
  };

  // Numbers of values that JobModel keeps.
  uint32_t machine = 0, tracker = 0;
  std::array<Rank, kRanks> ranks;
  std::array<Task, kChunks> tasks;
  // The content of memory: words, and which gradients the sums and squares have, as one bit per
  // round (LiveJob::round_bit).
  std::array<uint8_t, kChunks> param_step = {};
  std::array<std::array<uint8_t, kRanks>, kChunks> summed = {}, squared = {};
  std::array<uint8_t, kChunks> sum_order = {};  // ranks of the last four sums, two bits each
  uint8_t committed = 0, finished = 0, skipped_through = 0;
  // daemon::Job
  bool rang_ahead = false, filling_sums = false, updating = false, completes_step = false,
       over = false;
  uint8_t step_in_work = 0;
  uint8_t promised = 0;  // step that all had posted when a rank died
  auto operator<=>(const ModelState&) const = default;
};

// For two ranks: each has gradients of its own chunk alone (kApart), or of the other's chunk later
// (kCrossed).
inline constexpr std::array<std::array<uint8_t, 2>, 2> kApart = {{{3, 0}, {0, 3}}},
                                                       kCrossed = {{{3, 2}, {2, 3}}};

class JobModel {
 public:
  explicit JobModel(const ModelOptions& options);
  JobModel(const JobModel&) = delete;

  const ModelOptions& options() const { return options_; }
  ModelState start();
  const daemon::JobMachine& machine(const ModelState& state) const {
    return machines_[state.machine];
  }
  // All possible events; an event may leave the state as it is.
  std::vector<ModelEvent> events(const ModelState& state) const;
  // Throws a ModelViolation if the event breaks an invariant.
  ModelState after(const ModelState& state, ModelEvent event);

 private:
  friend class LiveJob;
  uint32_t keep(const daemon::JobMachine& machine);
  uint32_t keep(const daemon::GradTracker& tracker);

  const ModelOptions options_;
  // All values are different. The maps have their numbers, by a hash of the public content.
  std::vector<daemon::JobMachine> machines_;
  std::vector<daemon::GradTracker> trackers_;
  std::unordered_multimap<uint64_t, uint32_t> known_machines_, known_trackers_;
};

}  // namespace elixir::testing
