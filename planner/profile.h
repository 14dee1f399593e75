#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "shm/shape.h"

namespace elixir::planner {

inline constexpr uint64_t kMaxParameterNumel = shm::kMaxChunkNumel;

struct ProfiledParameter {
  std::string name;
  uint64_t numel = 0;
  bool shared = false;  // used in several places of forward, as tied embeddings are
  bool frozen = false;  // not trained: no gradient, no states
  uint32_t group = 0;   // of hyperparameters
};

// Operators `first` to `last` of ModelProfile::steps, both included.
struct OperatorRange {
  uint32_t first = 0, last = 0;
};

// What one step of a model on one GPU does, known before it runs: by client/profile on the meta
// device, or from a file (planner/profile_json.h).
struct ModelProfile {
  std::vector<ProfiledParameter> params;

  // The operators that read parameters, forward and backward in order; of each, the parameters it
  // reads, as indices into params. With activation checkpointing the recomputation stands in
  // backward.
  std::vector<std::vector<uint32_t>> steps;

  // Each of forward's checkpointed regions, and each of backward's recomputations with the
  // gradients that follow: the rCache holds all chunks of one at once.
  std::vector<OperatorRange> checkpoint_regions;

  uint64_t activation_bytes = 0;  // peak of what torch allocates within a step, gradients included
  uint64_t buffer_bytes = 0;      // of the module's buffers and the step's inputs
  ComputeType type = ComputeType::kBf16;  // of a parameter as operators read it

  // ---- what a file may leave out ----

  uint64_t tokens = 0;  // a step and GPU; 0: not known
  // Floating-point operations that take time with each operator of `steps`: its own and those of
  // the operators without parameters that follow it. Empty: 2 for each element and token in
  // forward, 4 in backward.
  std::vector<double> step_flops;
  // The first operator of backward; 0: half of the steps.
  uint32_t backward_begin = 0;
  // By parameter: the operator after which its gradient is complete. Empty: the last that reads it,
  // or the last of all for those that backward does not read.
  std::vector<uint32_t> gradient_after;
  // Memory over the step, by operator of `steps`: torch's greatest number of bytes from its begin
  // to the next one's. Empty: not known.
  std::vector<uint64_t> activation_curve;
  std::string model;      // its name, for people
  bool measured = false;  // by a warm-up step on the device, where an operator has no meta kernel

  uint32_t dtype_bytes() const { return static_cast<uint32_t>(element_bytes(type)); }
  uint64_t trained_numel() const;
  uint64_t total_numel() const;
  uint32_t backward_first() const;  // backward_begin, or its default
  // A trained parameter is read by no operator, so that it has no gradient.
  bool leaves_unused() const;
};

// The same with its parameters in the order of first use, those of one operator by name, unused
// ones last; all indices follow. REQUIRES: check_profile() is content.
ModelProfile in_first_use_order(ModelProfile profile);

// kBadInput, with the place: an index beyond params or steps, no parameters or none to train, an
// empty or doubled name, a numel out of range, regions that overlap, vectors of another
// length.
Status check_profile(const ModelProfile& profile);

}  // namespace elixir::planner
