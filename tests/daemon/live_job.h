#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "tests/daemon/job_model.h"

namespace elixir::testing {

#define MODEL_EXPECT(condition, ...)                                  \
  do {                                                                \
    if (!(condition)) throw ModelViolation(fmt::format(__VA_ARGS__)); \
  } while (false)

// One state while an event happens to it. The functions on elixird's side have the names and the
// order of daemon::Job's.
class LiveJob {
 public:
  LiveJob(JobModel* model, const ModelState& state)
      : model_(*model),
        options_(model->options_),
        state_(state),
        machine_(model->machines_[state.machine]),
        tracker_(model->trackers_[state.tracker]) {}

  void happen(const ModelEvent& event);
  ModelState result() {
    check();
    state_.machine = model_.keep(machine_);
    state_.tracker = model_.keep(tracker_);
    return state_;
  }

 private:
  using Kind = ModelEvent::Kind;

  // ---- a rank's script ----
  void store(uint32_t rank);
  void store_gradients(uint32_t rank);
  bool waits_for_slot(uint32_t rank, uint32_t chunk, uint32_t micro_step);
  void store_post(uint32_t rank);

  // ---- daemon::Job ----
  void look_at_grads(uint32_t rank, uint32_t chunk);
  void read_records(uint32_t rank);
  void look_at_posted(uint32_t rank);
  void look_at_everything();
  void note(uint32_t rank, uint32_t chunk);
  void note_post(uint32_t rank);
  void note_awaited(uint32_t rank);
  void take_what_is_awaited();
  void note_grads_of_next_step();
  void advance();
  bool start_next();
  void take_ready();
  bool begin_step(uint32_t step);
  void commit_step();
  void step_done();
  void submit_tasks(const std::vector<daemon::ChunkTask>& tasks, bool completes_step);
  void work_done();
  void sums_filled();
  void lose_rank(uint32_t rank);
  void detach(uint32_t rank);
  void fail(daemon::Fault fault, bool finish_posted);
  void end_if_possible();

  // ---- workers ----
  void do_task(uint32_t chunk);
  void sum_up(uint32_t chunk, const ModelState::Task& task);
  uint8_t contents(uint32_t chunk, uint32_t rank, const ModelState::Task& task) const;

  void check() const;
  bool training() const { return machine_.phase() == daemon::JobPhase::kTraining; }
  bool takes_early() const {
    const shm::StepRules& rules = options_.rules;
    return rules.sums_all() || rules.rings_all() || tracker_.wants_sums();
  }
  // The number of rounds that count, or that a rank makes before it drops them.
  uint32_t rounds(uint32_t rank, uint32_t discards) const {
    return last_discards(rank) == discards ? options_.rounds[rank] : options_.dropped[rank];
  }
  uint32_t last_discards(uint32_t rank) const { return options_.dropped[rank] > 0 ? 1 : 0; }
  // Dropped rounds have bits of their own. So have gradients that were overwritten while they were
  // read.
  static constexpr uint8_t kSpoiled = 0x80;
  uint8_t round_bit(uint32_t rank, const ModelState::Record& record) const {
    const uint32_t first = record.discards == last_discards(rank) ? 0 : 4;
    return static_cast<uint8_t>(1u << (first + record.micro_step - 1));
  }
  // The rank's micro-steps of the chunk in the first `passes` passes of a step.
  uint32_t micro_steps(uint32_t rank, uint32_t chunk, uint32_t passes, uint32_t discards) const {
    const uint32_t all = (1u << passes) - 1;
    const bool counts = discards == last_discards(rank);
    return static_cast<uint32_t>(std::popcount(counts ? all & options_.passes[rank][chunk] : all));
  }
  uint32_t all_micro_steps(uint32_t rank, uint32_t chunk) const {
    return std::max(1u, micro_steps(rank, chunk, options_.rounds[rank], last_discards(rank)));
  }
  bool all_in_all_passes() const { return options_.passes == ModelOptions().passes; }
  uint8_t all_rounds(uint32_t rank, uint32_t chunk) const {
    return static_cast<uint8_t>((1u << all_micro_steps(rank, chunk)) - 1);
  }
  uint32_t least_posted() const;

  JobModel& model_;
  const ModelOptions& options_;
  ModelState state_;
  daemon::JobMachine machine_;
  daemon::GradTracker tracker_;
};

}  // namespace elixir::testing
