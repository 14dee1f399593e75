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

// A job in which every order of events can be tried: JobMachine and GradTracker as elixird has
// them, between them what daemon::Job does with both (without memory, records and numbers), and
// honest ranks, one store at a time. A state is a value, equal ones go on equally.

// An invariant that does not hold.
struct ModelViolation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ModelOptions {
  uint32_t ranks = 2, chunks = 2, steps = 2;  // at most as many ranks and chunks as in ModelState
  std::array<uint32_t, 2> rounds = {2, 2};    // backward passes a step, by rank
  std::array<uint32_t, 2> dropped = {0, 0};   // before these: passes, then zero_grad()
  // By rank and chunk, a bit each: the passes that count in which it has gradients of the chunk. Of
  // one that is in none it publishes zeros, before its post.
  std::array<std::array<uint8_t, 2>, 2> passes = {{{0xff, 0xff}, {0xff, 0xff}}};
  shm::StepRules rules = {};
  bool waits = true;          // they say which sum they wait for, as trainers do
  uint32_t skipped_step = 0;  // whose verdict says so; 0: none
  bool dies = false;          // a rank may die at any time
  bool leaves = false;        // or say goodbye

  // The controls: what of elixird is left out.
  bool ticks = true;               // they make up for lost doorbells
  bool post_reads_records = true;  // before a rank counts as one that has posted
  bool reads_ahead_again = true;   // records that were of a later step when they were read
  bool sums_without_gone = true;   // nobody waits for gradients of a rank that said goodbye
  bool tells_discards = true;      // what ranks have dropped makes a difference
  bool sums_awaited = true;        // where all ranks wait for one another
};

// An event, of a rank and a chunk where it has one.
struct ModelEvent {
  enum class Kind : uint8_t {
    kStore,       // the rank's next one: a publication, a wish for a sum, a post; or its goodbye
    kRingsGrads,  // a doorbell, which comes whenever it likes, too often, or, where this event does
    kRingsPost,   // not happen, never
    kTick,
    kWorker,      // does one task, of the chunk
    kWorkDone,    // and elixird hears that all are done
    kSumsFilled,  // the memory for sums is there
    kDies,
    kLeaves
  };
  Kind kind = Kind::kTick;
  uint8_t rank = 0, chunk = 0;

  // What must come; doorbells get lost, and nobody has to die.
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
    std::array<uint8_t, kChunks> sum_step = {};  // in which a sum was asked for last
    bool gone = false;                           // its socket is closed
    // What it has written.
    uint8_t posted = 0, publications = 0, awaited = 0;
    std::array<Record, kChunks> records;
    // What elixird has written of its gradients.
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

  // Interned by JobModel.
  uint32_t machine = 0, tracker = 0;
  std::array<Rank, kRanks> ranks;
  std::array<Task, kChunks> tasks;
  // What is in memory: words, and, as a bit a round (LiveJob::round_bit), whose gradients the sums
  // and squares are of.
  std::array<uint8_t, kChunks> param_step = {};
  std::array<std::array<uint8_t, kRanks>, kChunks> summed = {}, squared = {};
  std::array<uint8_t, kChunks> sum_order = {};  // of the last four sums: of which ranks, two bits
  uint8_t committed = 0, finished = 0, skipped_through = 0;
  // daemon::Job
  bool rang_ahead = false, filling_sums = false, updating = false, completes_step = false,
       over = false;
  uint8_t step_in_work = 0;
  uint8_t promised = 0;  // posted by all when a rank died
  auto operator<=>(const ModelState&) const = default;
};

// Of two ranks: each has gradients of its own chunk alone, or of the other's later.
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
  // All that can happen; an event may leave the state as it is.
  std::vector<ModelEvent> events(const ModelState& state) const;
  // Throws a ModelViolation when an invariant is broken by it.
  ModelState after(const ModelState& state, ModelEvent event);

 private:
  friend class LiveJob;
  uint32_t keep(const daemon::JobMachine& machine);
  uint32_t keep(const daemon::GradTracker& tracker);

  const ModelOptions options_;
  // All different; their numbers, by what of them is public.
  std::vector<daemon::JobMachine> machines_;
  std::vector<daemon::GradTracker> trackers_;
  std::unordered_multimap<uint64_t, uint32_t> known_machines_, known_trackers_;
};

}  // namespace elixir::testing
