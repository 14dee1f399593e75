#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "optim_cpu/adam.h"

namespace elixir::optim {

// Knows which parameters a step updates, and with which constants. Each parameter counts its own
// updates, as torch::optim's state["step"] does. One that had no gradient in some steps is behind
// in Adam's bias correction. Not thread-safe, but any thread may call the const functions between
// two changes.
//
// The constructor takes the memory for one set of constants per parameter. A step has more only if
// a parameter is updated, undone, and updated in another group. Then update() allocates.
class ParameterSteps {
 public:
  ParameterSteps(uint32_t n_parameters, uint32_t most_groups);

  // Begins the next step, with the hyperparameters of its groups. It updates only the parameters
  // that update() names. `number` goes into redo records.
  void begin(const std::vector<AdamOptions>& groups, uint64_t number, double grad_scale);
  // This step updates the parameter. REQUIRES: at most once per step.
  void update(uint32_t parameter, uint32_t group);
  // Takes update() back. REQUIRES: update() was called for the parameter in this step.
  void undo(uint32_t parameter);

  // How often the parameter has been updated. Loading a checkpoint sets it.
  uint64_t updates(uint32_t parameter) const { return updates_[parameter]; }
  void set_updates(uint32_t parameter, uint64_t count) { updates_[parameter] = count; }

  // Null if the step does not update the parameter. Good until the next begin() or update().
  const AdamStep* of(uint32_t parameter) const {
    const uint32_t index = constants_of_[parameter];
    return index == kNone ? nullptr : &constants_[index];
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Last {
    uint64_t count = 0;  // 0: none
    uint32_t index = 0;
  };
  using Known = std::unordered_map<uint64_t, uint32_t>;  // by group and count
  Known::iterator know(uint64_t key, uint32_t index);

  std::vector<AdamOptions> groups_;
  uint64_t number_ = 0;
  double grad_scale_ = 1;
  std::vector<uint64_t> updates_;       // by parameter
  std::vector<uint32_t> constants_of_;  // by parameter
  std::vector<AdamStep> constants_;
  Known known_;
  std::vector<Known::node_type> spare_;  // from earlier steps, for reuse
  std::vector<Last> last_;               // by group; the next parameter usually has the same
};

}  // namespace elixir::optim
