#pragma once

// Why nothing fits: what it would take at least, what there is, where, and what helps.

#include <string>

#include "base/status.h"
#include "planner/search/candidate.h"

namespace elixir::planner {

// Where activations leave nothing for chunks (allowed_bytes is 0), what a GPU lacks before they do;
// else 0.
uint64_t activations_short(const ModelProfile& profile, const Machine& machine,
                           uint64_t allowed_bytes);
Status refusal_of_activations(const ModelProfile& profile, const Machine& machine);

// One parameter does not fit what is left of a GPU.
Status refusal_of_parameter(const ProfiledParameter& parameter, uint64_t need_bytes,
                            uint64_t allowed_bytes);

// The least that could run at one chunk length, and what it lacks of a GPU or, where a GPU holds
// it, of a node's host memory.
struct Lack {
  Candidate least;
  PlanBytes bytes;                                  // of it
  uint64_t chunk_bytes = 0;                         // of a block
  uint64_t gpu_need_bytes = 0, gpu_have_bytes = 0;  // of chunks and states
  uint64_t gpu_memory_bytes = 0;
  uint64_t host_need_bytes = 0, host_have_bytes = 0, host_memory_bytes = 0;  // of a node
  std::string asked;  // flags by which it is not chosen by the search, "--a and --b"; "": none

  bool of_gpu() const { return gpu_need_bytes > gpu_have_bytes; }
  uint64_t bytes_short() const {
    if (of_gpu()) return gpu_need_bytes - gpu_have_bytes;
    return host_need_bytes > host_have_bytes ? host_need_bytes - host_have_bytes : 0;
  }
};
Lack make_lack(const Setting& setting, const Candidate& least, uint64_t allowed_bytes,
               std::string asked);
// That of the host first: there the GPUs suffice.
bool lacks_less(const Lack& a, const Lack& b);

Status refusal(const Lack& lack);

}  // namespace elixir::planner
