#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/region_plan.h"
#include "base/status.h"
#include "shm/shape.h"

namespace elixir::planner {

inline constexpr uint64_t kMaxParameterNumel = shm::kMaxChunkNumel;

struct ProfiledParameter {
  std::string name;
  uint64_t numel = 0;
  bool shared = false;  // used in several places of forward, as tied embeddings are
  bool frozen = false;  // not trained: no gradient, no states
  uint32_t group = 0;   // hyperparameter group
};

// Operators `first` to `last` of ModelProfile::steps, both included.
struct OperatorRange {
  uint32_t first = 0, last = 0;
};

// `count` products of matrices, [rows, inner] by [inner, columns] each.
struct MatrixProduct {
  uint64_t count = 1, rows = 0, columns = 0, inner = 0;

  double flops() const;  // a multiplication and an addition each
  bool operator==(const MatrixProduct&) const = default;
};

// The work that operators give a GPU. Products and fused attention take time by their operations,
// other operators by the bytes that they read and write.
struct OperatorWork {
  std::vector<MatrixProduct> products = {};
  // Operations of fused attention, over the whole square of scores, causal or not: two products
  // forward and five backward.
  double attention_flops = 0;
  uint32_t attention_head = 0;  // elements of a head, the largest; 0: no fused attention
  double bytes = 0;
  uint32_t kernels = 0;

  double flops() const;
  void add(const OperatorWork& other);
  // False: it was not part of this, which is now neither.
  bool remove(const OperatorWork& other);
};

// A region's memory of torch, in bytes beyond what there was when it began. Its backward begins
// with the held bytes there.
struct RegionBytes {
  uint64_t held = 0;  // from its forward's end on, until backward has passed it
  uint64_t forward_peak = 0, backward_peak = 0;
};

// The part of step_work[step] that is a region's second run.
struct SecondRunWork {
  uint32_t step = 0;
  OperatorWork products = {};  // matrices and attention; a region that keeps them has none
  OperatorWork others = {};

  OperatorWork all() const;
};

// Tensors of one region that lie in host memory between two operators of ModelProfile::steps. They
// leave the device behind `put_after`, and are there again when `get_before` begins.
struct SentParcel {
  uint32_t put_after = 0, get_before = 0;
  uint64_t bytes = 0;
};

// A checkpointed region, and how it runs with each Keep.
struct ProfiledRegion {
  // Its forward or its backward. Bytes are those that torch holds if no region keeps anything.
  struct Run {
    OperatorRange steps;
    uint64_t begin_bytes = 0;
    uint64_t after_bytes = 0;  // the peak behind it, until an operator reads a parameter
  };
  Run forward, backward;
  std::array<RegionBytes, kKeeps.size()> bytes = {};
  std::vector<SecondRunWork> second_run = {};  // by step, if it keeps nothing
  uint64_t boundary_bytes = 0;  // its inputs that can go to host memory; they are results of others

  const RegionBytes& bytes_of(Keep keep) const { return bytes[static_cast<size_t>(keep)]; }
};

// One step of a model on one GPU, known before it runs. It comes from client/profile on the meta
// device, or from a file (planner/profile_json.h).
struct ModelProfile {
  std::vector<ProfiledParameter> params;

  // The operators that read parameters, forward and backward in order. Each entry lists the
  // parameters that one operator reads, as indices into params. With activation checkpointing, the
  // recomputation is part of backward.
  std::vector<std::vector<uint32_t>> steps;

  // Forward's checkpointed regions, and backward's recomputations with the gradients that follow.
  // The rCache holds all chunks of one region at once.
  std::vector<OperatorRange> checkpoint_regions;

  uint64_t activation_bytes = 0;  // peak of what torch allocates within a step, gradients included
  uint64_t buffer_bytes = 0;      // the module's buffers and the step's inputs
  ComputeType type = ComputeType::kBf16;  // a parameter's, as operators read it

  // ---- optional in a file ----

  uint64_t tokens = 0;  // per step and GPU; 0: not known
  // By operator of `steps`: floating-point operations of itself and of the operators without
  // parameters that follow it. Empty: 2 per element and token in forward, 4 in backward.
  std::vector<double> step_flops;
  // By operator of `steps` like step_flops, which is their flops(). Empty: not known.
  std::vector<OperatorWork> step_work;
  // The first operator of backward; 0: half of the steps.
  uint32_t backward_begin = 0;
  // By parameter: the operator after which its gradient is complete. Empty: the last one that reads
  // it, or the last of all if backward does not read it.
  std::vector<uint32_t> gradient_after;
  // By operator of `steps`: the peak of torch's bytes from its begin to the next one's. Empty: not
  // known.
  std::vector<uint64_t> activation_curve;
  // The checkpointed regions in the order of forward, if the profile says what they could keep. The
  // other members describe a step in which they keep nothing, unless with_regions() made it.
  std::vector<ProfiledRegion> regions;
  // activation_bytes with what the allocator's fragmentation adds; 0: kActivationFactor times as
  // many (kept_regions.h).
  uint64_t allocated_bytes = 0;
  uint64_t held_bytes = 0;  // all that regions hold on the device beyond their inputs and results
  // By with_regions(): what each region sends, in forward's order, the last one included. That one
  // stays on the device, and `sent_bytes` does not count it.
  std::vector<SentParcel> parcels;
  uint64_t sent_bytes = 0;
  std::string model;      // its name, for people
  bool measured = false;  // by a warm-up step on the device: an operator has no meta kernel

  uint32_t dtype_bytes() const { return static_cast<uint32_t>(element_bytes(type)); }
  uint64_t trained_numel() const;
  uint64_t total_numel() const;
  uint32_t backward_first() const;  // backward_begin, or its default
  // Whether no operator reads some trained parameter, so that it has no gradient.
  bool leaves_unused() const;
};

// The profile with its parameters in the order of first use. Those of one operator are in the order
// of names, and unused ones come last. All indices follow. REQUIRES: check_profile() is OK.
ModelProfile in_first_use_order(ModelProfile profile);

// Returns kBadInput with the place. Faults are indices beyond params or steps, no parameters or
// none to train, and empty or doubled names. So are a numel out of range, regions that overlap, and
// vectors of another length.
Status check_profile(const ModelProfile& profile);

}  // namespace elixir::planner
