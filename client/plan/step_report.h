#pragma once

// The reports of an optimizer about its plan and its steps.

#include <cstdint>
#include <string>

#include "planner/choices.h"

namespace elixir {

// The plan as it was carried out.
struct PlanSummary {
  uint64_t parameters_numel;  // of the model
  uint64_t frozen_numel;      // of them, not trained
  uint64_t chunk_numel;
  uint32_t n_chunks;         // of trained parameters
  uint32_t n_gpu_chunks;     // of them, placed on the GPU
  uint32_t n_swing_chunks;   // of the others, whose states pass through the device for their update
  uint32_t n_frozen_chunks;  // of the others
  uint32_t rcache_blocks;
  uint32_t long_blocks;  // for parameters longer than a chunk
  uint64_t long_numel;   // elements of each
  UpdateMode update;     // early only with spare slots
  uint32_t spare_slots;  // chunks of a step that may be updated early
  shm::Exchange exchange;
  std::string device;
  uint64_t pinned_bytes;  // of host memory, page-locked for the device
  // of what could not be page-locked: its copies are slow and hold up the host
  uint64_t pageable_bytes;
  double waste_ratio;
  double predicted_step_s;     // by Options::plan; 0: without one
  uint64_t device_bytes;       // what Elixir holds on the device
  uint64_t model_state_bytes;  // 16 bytes a parameter: what training holds without Elixir; frozen
                               // ones: the parameter
  double attach_seconds;       // until all ranks had their memory from elixird
  double load_seconds;         // until their initial values were drawn and loaded
};

// How a step spent its time, against the best this run could do.
struct Roofline {
  uint32_t step = 0;      // which; 0: none is known yet
  double compute_ms = 0;  // step minus exposed
  double h2d_ms = 0, d2h_ms = 0, update_ms = 0, exposed_ms = 0, step_ms = 0;
  planner::Leg binding = planner::Leg::kCompute;  // the leg that would take longest by itself
  double time_over_limit = 1;  // step / that leg; legs at the best rate measured in this run
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
  // In that step: chunks of this node that were updated before the verdict, and how many of them
  // the verdict kept.
  uint32_t early_chunks = 0, early_hits = 0;
  uint32_t swing_chunks = 0;  // in that step: updated on the device, not in elixird's rate
  // The times of roofline.step: this step on a CPU, the last one that it has finished on a GPU. The
  // update's time is that of the last step that elixird has finished.
  Roofline roofline;
};

// The outcome of a step, the same on all ranks.
struct StepOutcome {
  uint32_t step = 0;
  double mean_loss = 0;   // over ranks, of what each gave to step()
  double grad_norm = 0;   // of all gradients before clipping; NaN where nothing asked for it
  double loss_scale = 1;  // that its losses were multiplied by
  bool skipped = false;   // a gradient was not finite: no parameter has changed
  bool save_asked = false, stop_asked = false;  // by any rank, with Optimizer::ask_all()
};

}  // namespace elixir
