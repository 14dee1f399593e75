#pragma once

// The state of simulated training. simulate_step() runs it.

#include <array>
#include <cstdint>
#include <deque>
#include <tuple>
#include <vector>

#include "planner/simulate/servers.h"
#include "planner/simulate/simulate.h"
#include "planner/simulate/step_program.h"

namespace elixir::planner {

class StepSimulation {
 public:
  // `model` and `program` must outlive this object.
  StepSimulation(const StepModel& model, const StepProgram& program, bool keep_spans);

  // Runs until the next step ends. Returns kInternal, which is a bug, if nothing can continue.
  Status run_step();
  // Checks what holds between any two events. It passes over all chunks, so it runs once per step.
  void check_invariant() const;
  // The latest step's time. REQUIRES: run_step() was called.
  double last_step_s() const { return ends_.back().at_s - last_begin().at_s; }
  StepTimes last_step() const;
  std::vector<StepSpan> last_spans() const;

 private:
  enum class Doing : uint8_t { kNothing, kOperator, kGpuUpdate, kCopyStall };
  // The place of a chunk's gradients of a micro-step, with StepRuntime::grad_blocks.
  enum class Grads : uint8_t { kNone, kInBlock, kAside };

  // Running totals when a step ended.
  struct StepEnd : LegSeconds, StepTraffic {
    double at_s = 0;
  };

  const StepEnd& last_begin() const;

  // ---- time ----
  Status run_until_step_ends();
  bool start_all();
  void finish_due();
  void finish_due(HostMemory::User user);
  double next_event_s() const;
  void add_span(StepSpan span);

  // ---- the compute stream ----
  bool start_compute();
  bool start_operator();
  void begin(Doing what, double seconds);
  void finish_compute();
  bool chunks_here() const;
  void forget_chunks();
  bool copies_stall();
  void finish_operator();

  // ---- parameters up ----
  bool updated(uint32_t chunk) const;
  bool run_updated(uint32_t first) const;
  double run_bytes(uint32_t first) const;
  bool ahead_has_room(const CacheFetch& fetch);
  bool evict(const CacheFetch& fetch, size_t kind);
  bool issue(const CacheFetch& fetch, size_t kind);
  bool issue_next(uint32_t last_operator);
  bool issue_fetches(uint32_t last_operator);
  void finish_fetch(const Job& job);

  // ---- gradients down ----
  bool stays_on_device(uint32_t chunk) const;
  bool take_gradients();
  void take_gradient(const GradientPart& part);
  bool needs_block(uint32_t chunk) const;
  bool hold_block(uint32_t chunk);
  void leave_block(uint32_t chunk);
  void push_gradient(const GradientPart& part, double bytes);
  void finish_gradient(uint32_t chunk);

  // ---- activations to host memory and back ----
  bool parcels_let(uint32_t next_operator);
  bool put_parcels(uint32_t next_operator);
  void push_parcel(uint32_t parcel, HostMemory::User direction);

  // ---- updates ----
  Job update_job(Job::Kind kind, uint32_t chunk, double share) const;
  void push_update(uint32_t chunk);
  bool start_published();
  bool start_early();
  bool all_are_in() const;
  bool start_swing();
  double swing_bytes(uint32_t chunk) const;
  void post();
  void update_on_gpu();
  bool commit();
  bool finish_step();
  void finish_update(uint32_t chunk);
  bool take_early(uint32_t chunk);

  void push_copy(HostMemory::User direction, Job job, uint64_t copies);
  void finish_job(const Job& job);

  const StepModel& model_;
  const StepProgram& program_;
  const uint32_t n_operators_;
  const bool keep_spans_;

  double now_s_ = 0;
  HostMemory host_;
  Worker g2g_;
  Worker swing_;                 // updates of swing chunks on the GPU
  std::vector<StepEnd> ends_;    // the first is time 0
  StepEnd totals_;               // bytes and gathers, so far
  std::vector<StepSpan> spans_;  // those of all steps

  // compute
  Doing doing_ = Doing::kNothing;
  uint32_t operator_ = 0;  // in hand, or the next one
  double begin_s_ = 0, end_s_ = kNoEvent;
  double compute_done_s_ = 0;      // operators and updates that have ended
  std::deque<double> gpu_work_s_;  // updates of chunks placed on the GPU
  double owed_s_ = 0;              // time to wait for copies that are not hidden
  double settled_copies_s_ = 0;    // totals when owed_s_ was last computed
  double settled_idle_s_ = 0;
  double running_s_ = 0;     // the compute stream was busy, stalls included
  bool stall_paid_ = false;  // for the next operator

  // blocks
  static constexpr size_t kKinds = std::tuple_size_v<decltype(StepProgram::fetches)>;
  std::array<size_t, kKinds> next_fetch_ = {}, first_ahead_ = {};  // in program_.fetches
  std::vector<uint8_t> here_;                                      // by chunk
  enum class Eviction : uint8_t { kNone, kUnderWay, kDone };
  std::array<Eviction, kKinds> eviction_ = {};  // for next_fetch_

  // gradients
  bool taking_gradients_ = false;  // those of the operator that has ended
  size_t next_part_ = 0;           // in its gradients
  std::vector<Grads> grads_;       // by chunk
  std::deque<uint32_t> filling_;   // chunks in blocks, the one filled the longest ago first
  uint32_t free_blocks_;

  // activations
  enum class Parcel : uint8_t { kHere, kGoing, kAway, kComing };
  std::vector<Parcel> parcels_;  // by parcel
  uint32_t next_put_ = 0, next_get_ = 0;

  // updates
  uint32_t step_ = 0;                 // steps ended so far
  std::vector<uint32_t> updates_;     // by chunk: updates done
  uint32_t gradients_under_way_ = 0;  // chunks whose complete gradients have not arrived
  uint32_t updates_left_ = 0;         // begun and not done, on CPU and GPU
  struct Published {
    uint32_t chunk = 0;
    uint64_t uploads = 0;  // they must end before its update
  };
  std::deque<Published> published_;
  // Early updates of the step in hand. A chunk with a spare slot is in the workers' hands, or done,
  // until the commit. Other chunks wait in early_queue_.
  std::deque<uint32_t> early_queue_;
  bool early_in_hand_ = false;
  std::vector<uint8_t> early_done_;  // by chunk
  uint32_t early_taken_ = 0;         // spare slots in use
  std::deque<uint32_t> to_swing_;
  uint32_t swinging_ = 0;    // chunks in buffers on the GPU
  bool posted_ = false;      // the step in hand
  bool committing_ = false;  // a posted step is not committed yet
  bool gpu_updates_pushed_ = false;
  uint64_t posted_uploads_ = 0;
};

}  // namespace elixir::planner
