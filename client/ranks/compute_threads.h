#pragma once

#include <cstdint>

#include "base/processors.h"

namespace elixir {

// How many threads a rank's operators get. The first of these counts:
//   1. `asked` (--threads), unless it is 0;
//   2. OMP_NUM_THREADS, unless it is torchrun's own choice. torchrun sets 1 beside its
//      TORCHELASTIC_RUN_ID, no matter how many processors there are;
//   3. `parallel`, divided by the ranks of the node. At least 1.
uint32_t compute_threads(uint32_t asked, uint32_t local_ranks,
                         uint32_t parallel = parallel_threads());

}  // namespace elixir
