#include "planner/search/refusal.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "planner/search/benefit.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {
namespace {

uint64_t lack(uint64_t need_bytes, uint64_t have_bytes) {
  return need_bytes > have_bytes ? need_bytes - have_bytes : 0;
}

}  // namespace

Status refusal_of_activations(const ModelProfile& profile, const Machine& machine) {
  const uint64_t need_bytes =
      profile.buffer_bytes +
      static_cast<uint64_t>(kActivationFactor * static_cast<double>(profile.activation_bytes));
  return error(Code::kResourceExhausted,
               "it cannot fit: activations ({} with fragmentation) and buffers ({}) of a step need "
               "{} of the GPU's {}, {} more than there are: use a smaller batch or sequence, or "
               "activation checkpointing",
               format_bytes(need_bytes - profile.buffer_bytes), format_bytes(profile.buffer_bytes),
               format_bytes(need_bytes), format_bytes(machine.gpu_memory_bytes),
               format_bytes(lack(need_bytes, machine.gpu_memory_bytes)));
}

Status refusal_of_parameter(const ProfiledParameter& parameter, uint64_t need_bytes,
                            uint64_t allowed_bytes) {
  return error(Code::kResourceExhausted,
               "it cannot fit: the parameter '{}' alone needs {} on the GPU, and {} are left for "
               "gathered parameters, {} too few: use a smaller batch or a GPU with more memory",
               parameter.name, format_bytes(need_bytes), format_bytes(allowed_bytes),
               format_bytes(lack(need_bytes, allowed_bytes)));
}

Status refusal(const Setting& setting, const Need& need) {
  Candidate least;
  least.exchange = need.exchange;
  least.rcache_blocks = need.asked_blocks.value_or(need.blocks);
  if (need.asked_gpu_share) {
    least.gpu_chunks =
        static_cast<uint32_t>(std::lround(*need.asked_gpu_share * setting.packing.n_chunks));
  }
  least.rcache_blocks = std::min(least.rcache_blocks, setting.gathered_chunks(least.gpu_chunks));
  const PlanBytes bytes = bytes_of(setting, least);
  const uint64_t gpu_bytes = chosen_gpu_bytes(bytes);
  if (gpu_bytes > need.allowed_bytes) {
    return error(
        Code::kResourceExhausted,
        "it cannot fit: {} rCache blocks of {} and what stands beside them need {} on each "
        "GPU, and {} are left of {} after activations and buffers, {} too few: use a "
        "smaller batch, shorter chunks, or a GPU with more memory",
        least.rcache_blocks, format_bytes(setting.chunk_bytes()), format_bytes(gpu_bytes),
        format_bytes(need.allowed_bytes), format_bytes(setting.machine.gpu_memory_bytes),
        format_bytes(lack(gpu_bytes, need.allowed_bytes)));
  }
  const uint64_t host_bytes =
      static_cast<uint64_t>(kHostShare * static_cast<double>(setting.machine.host_memory_bytes));
  return error(Code::kResourceExhausted,
               "it cannot fit: the model states need {} in host memory (parameters {}, gradients "
               "{}, optimizer states {}) beside what the GPUs hold, and {} of {} may be used, {} "
               "too few: use more GPUs, or a host with more memory",
               format_bytes(bytes.host()), format_bytes(bytes.host_params),
               format_bytes(bytes.host_grads), format_bytes(bytes.host_states),
               format_bytes(host_bytes), format_bytes(setting.machine.host_memory_bytes),
               format_bytes(lack(bytes.host(), host_bytes)));
}

}  // namespace elixir::planner
