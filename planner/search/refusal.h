#pragma once

// Why nothing fits: the least that it takes, what there is, where, and what helps.

#include <string>

#include "base/status.h"
#include "planner/search/candidate.h"

namespace elixir::planner {

// The bytes that are missing on a GPU if activations leave nothing for chunks (allowed_bytes is 0).
// Otherwise 0.
uint64_t activations_short(const ModelProfile& profile, const Machine& machine,
                           uint64_t allowed_bytes);
Status refusal_of_activations(const ModelProfile& profile, const Machine& machine);

// The error if one parameter does not fit the memory that is left on a GPU.
Status refusal_of_parameter(const ProfiledParameter& parameter, uint64_t need_bytes,
                            uint64_t allowed_bytes);

// The candidate that needs least at one chunk length, and the memory that is missing for it. That
// is memory of a GPU or, if a GPU holds it, of a node's host.
struct Lack {
  Candidate least;
  PlanBytes bytes;                                  // for `least`
  uint64_t chunk_bytes = 0;                         // per block
  uint64_t gpu_need_bytes = 0, gpu_have_bytes = 0;  // for chunks and states
  uint64_t gpu_memory_bytes = 0;
  uint64_t host_need_bytes = 0, host_have_bytes = 0, host_memory_bytes = 0;  // per node
  std::string asked;  // flags that decide it in the search's place, "--a and --b"; "": none

  bool of_gpu() const { return gpu_need_bytes > gpu_have_bytes; }
  uint64_t bytes_short() const {
    if (of_gpu()) return gpu_need_bytes - gpu_have_bytes;
    return host_need_bytes > host_have_bytes ? host_need_bytes - host_have_bytes : 0;
  }
};
Lack make_lack(const Setting& setting, const Candidate& least, uint64_t allowed_bytes,
               std::string asked);
// Missing host memory comes before missing GPU memory, since with it the GPUs suffice. Within each,
// fewer missing bytes come first.
bool lacks_less(const Lack& a, const Lack& b);

Status refusal(const Lack& lack);

}  // namespace elixir::planner
