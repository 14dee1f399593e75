#pragma once

// The reports of an optimizer about its plan and its steps.

#include <cstdint>
#include <string>

#include "planner/choices.h"

namespace elixir {

// The plan as it was carried out.
struct PlanSummary {
  uint64_t parameters_numel;  // all of the model
  uint64_t frozen_numel;      // the frozen part of them
  uint64_t chunk_numel;
  uint32_t n_chunks;         // chunks of trained parameters
  uint32_t n_gpu_chunks;     // the part of them on the GPU
  uint32_t n_swing_chunks;   // swing chunks among n_chunks
  uint32_t n_frozen_chunks;  // not among n_chunks
  uint32_t rcache_blocks;
  uint32_t long_blocks;  // for parameters longer than a chunk
  uint64_t long_numel;   // elements of each long block
  UpdateMode update;     // early only with spare slots
  uint32_t spare_slots;  // chunks of a step that may be updated early
  shm::Exchange exchange;
  std::string device;
  uint64_t pinned_bytes;  // host memory that is page-locked for the device
  // memory that could not be page-locked: its copies are slow, and the host waits for them
  uint64_t pageable_bytes;
  double waste_ratio;
  double predicted_step_s;     // by Options::plan; 0: without one
  uint64_t device_bytes;       // held by Elixir on the device
  uint64_t model_state_bytes;  // without Elixir: 16 bytes per trained parameter, and the frozen
                               // parameters
  double attach_seconds;       // until all ranks had their memory from elixird
  double load_seconds;         // until their initial values were drawn and loaded
};

// How a step spent its time, compared with the best that this run could do.
struct Roofline {
  uint32_t step = 0;      // its number; 0: none is known yet
  double compute_ms = 0;  // step_ms - exposed_ms
  double h2d_ms = 0, d2h_ms = 0, update_ms = 0, exposed_ms = 0, step_ms = 0;
  planner::Leg binding = planner::Leg::kCompute;  // the leg that would take longest by itself
  double time_over_limit = 1;  // step's time / binding leg's, at the best rates of this run
};

// Statistics of the last step() on this rank.
struct StepStats {
  uint32_t step = 0;
  uint64_t gathers = 0;  // chunks copied into blocks
  uint64_t hits = 0;     // operators' chunks that were in a block already
  uint64_t evictions = 0;
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  uint64_t d2d_bytes = 0;         // received from other devices, by collectives
  double update_numel_per_s = 0;  // elixird's rate in the last step that it has finished
  // In that step: how many chunks of this node were updated before the verdict, and how many of
  // these updates the verdict kept.
  uint32_t early_chunks = 0, early_hits = 0;
  uint32_t swing_chunks = 0;        // in that step: updated on the device, outside elixird's rate
  uint64_t recomputed_regions = 0;  // checkpointed regions that ran again in backward
  // By the plan, what its regions keep beside their inputs; 0 without a plan.
  uint64_t kept_bytes = 0;
  uint64_t activation_d2h_bytes = 0, activation_h2d_bytes = 0;  // to host memory and back
  // The times of roofline.step: on a CPU this step, on a GPU the last step that it has finished.
  // The update's time is that of the last step that elixird has finished.
  Roofline roofline;
};

// The outcome of a step, the same on all ranks.
struct StepOutcome {
  uint32_t step = 0;
  double mean_loss = 0;   // over ranks, of the losses that they gave to step()
  double grad_norm = 0;   // norm of all gradients before clipping; NaN if no option asked for it
  double loss_scale = 1;  // its losses were multiplied by it
  bool skipped = false;   // a gradient was not finite: no parameter has changed
  bool save_asked = false, stop_asked = false;  // by any rank, with Optimizer::ask_all()
};

}  // namespace elixir
