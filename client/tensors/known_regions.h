#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "client/tensors/left_out.h"

// Knowledge that second runs of checkpointed regions share (client/tensors/second_run.h).

namespace elixir {

// The operators at a region's end that need not run again, behind those whose calls hash to
// `begins_after`. None: such a region runs whole.
struct RegionTail {
  uint64_t begins_after = 0;
  uint32_t products_before = 0;  // products and attention among those calls
  std::vector<LeftOutOperator> operators = {};
};

// Facts about the regions of one kind. They have the same type of function, the same number of
// regions around them, and inputs that are equal except for values. Immutable, so that runs on
// other threads may hold it.
struct KnownRegion {
  std::vector<RegionTail> tails = {};
  bool observe = true;     // the next run that has none of `tails`
  bool run_whole = false;  // too many sorts are of this kind

  // The products that a first run of this kind may store: those that second runs compute. 0 if
  // nothing is known, or if there are several sorts.
  uint32_t products_to_store() const;
};

// One process has one table of known regions, except that a profile has its own, which begins
// empty. Any thread.
class KnownRegions {
 public:
  static KnownRegions& of_process();

  std::shared_ptr<const KnownRegion> find(uint64_t kind) const;
  void set(uint64_t kind, KnownRegion region);

 private:
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<const KnownRegion>> regions_
      ELIXIR_GUARDED_BY(mutex_);
};

// Whether second runs end early. At first they do, unless ELIXIR_STOP_EARLY=0. Any thread.
bool stops_early();
void set_stops_early(bool stops);

// A hash of the function's type, the number of regions around and the inputs, without their values.
uint64_t kind_of_region(size_t function_type, int depth, const std::vector<at::Tensor>& inputs);

}  // namespace elixir
