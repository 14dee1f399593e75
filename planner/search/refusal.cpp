#include "planner/search/refusal.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"
#include "planner/plan/plan_json.h"
#include "planner/search/benefit.h"
#include "shm/shape.h"

namespace elixir::planner {
namespace {

uint64_t step_need_bytes(const ModelProfile& profile) {
  return profile.buffer_bytes + static_cast<uint64_t>(allocated_activations(profile));
}

uint64_t lack(uint64_t need_bytes, uint64_t have_bytes) {
  return need_bytes > have_bytes ? need_bytes - have_bytes : 0;
}

}  // namespace

uint64_t activations_short(const ModelProfile& profile, const Machine& machine,
                           uint64_t allowed_bytes) {
  if (allowed_bytes > 0) return 0;
  const uint64_t beside_overhead =
      profile.buffer_bytes + profile.activation_bytes + machine.overhead_bytes;
  // One byte at least: nothing is left for chunks.
  return std::max({lack(step_need_bytes(profile), machine.gpu_memory_bytes),
                   lack(beside_overhead, machine.gpu_memory_bytes), uint64_t{1}});
}

Status refusal_of_activations(const ModelProfile& profile, const Machine& machine) {
  const uint64_t need_bytes = step_need_bytes(profile);
  const std::string overhead =
      machine.overhead_bytes == 0
          ? ""
          : fmt::format(", of which CUDA takes {}", format_bytes(machine.overhead_bytes));
  return error(Code::kResourceExhausted,
               "it cannot fit: activations ({} with fragmentation) and buffers ({}) of a step need "
               "{} of the GPU's {}{}, {} too much: use a smaller batch or sequence, "
               "activation checkpointing, or a GPU with more memory",
               format_bytes(need_bytes - profile.buffer_bytes), format_bytes(profile.buffer_bytes),
               format_bytes(need_bytes), format_bytes(machine.gpu_memory_bytes), overhead,
               format_bytes(activations_short(profile, machine, 0)));
}

Status refusal_of_parameter(const ProfiledParameter& parameter, uint64_t need_bytes,
                            uint64_t allowed_bytes) {
  return error(Code::kResourceExhausted,
               "it cannot fit: the parameter '{}' alone needs {} on the GPU, and {} are left for "
               "gathered parameters, {} too few: use a smaller batch or a GPU with more memory",
               parameter.name, format_bytes(need_bytes), format_bytes(allowed_bytes),
               format_bytes(lack(need_bytes, allowed_bytes)));
}

Lack make_lack(const Setting& setting, const Candidate& least, uint64_t allowed_bytes,
               std::string asked) {
  const PlanBytes bytes = bytes_of(setting, least);
  return {.least = least,
          .bytes = bytes,
          .chunk_bytes = shape_of(setting, least).block_bytes(),
          .gpu_need_bytes = chosen_gpu_bytes(bytes),
          .gpu_have_bytes = allowed_bytes,
          .gpu_memory_bytes = setting.machine.gpu_memory_bytes,
          .host_need_bytes = bytes.host(),
          .host_have_bytes = usable_host_bytes(setting.machine.host_memory_bytes),
          .host_memory_bytes = setting.machine.host_memory_bytes,
          .asked = std::move(asked)};
}

bool lacks_less(const Lack& a, const Lack& b) {
  if (a.of_gpu() != b.of_gpu()) return b.of_gpu();
  return a.bytes_short() < b.bytes_short();
}

Status refusal(const Lack& lack) {
  const PlanBytes& bytes = lack.bytes;
  const std::string other_choice =
      lack.asked.empty() ? "" : fmt::format("another {} or none, ", lack.asked);
  if (lack.of_gpu()) {
    return error(
        Code::kResourceExhausted,
        "it cannot fit: each GPU needs {} for {} rCache block{} of {}, other blocks and "
        "states ({} exchange), but {} of {} are left after activations and buffers, {} too "
        "few: use a smaller batch or sequence, {}or a GPU with more memory",
        format_bytes(lack.gpu_need_bytes), lack.least.rcache_blocks,
        lack.least.rcache_blocks == 1 ? "" : "s", format_bytes(lack.chunk_bytes),
        exchange_name(lack.least.exchange), format_bytes(lack.gpu_have_bytes),
        format_bytes(lack.gpu_memory_bytes), format_bytes(lack.bytes_short()), other_choice);
  }
  std::string waiting =
      bytes.host_waiting == 0 ? "" : ", waiting gradients " + format_bytes(bytes.host_waiting);
  if (bytes.host_activations > 0) {
    waiting += ", activations " + format_bytes(bytes.host_activations);
  }
  return error(
      Code::kResourceExhausted,
      "it cannot fit: the model states need {} in host memory (per node: parameters {}, "
      "gradients {}, optimizer states {}{}; {} exchange) and {} on each GPU, but {} of {} "
      "of host memory can be used, {} too few: use {}more GPUs, or a host with more memory",
      format_bytes(bytes.host()), format_bytes(bytes.host_params), format_bytes(bytes.host_grads),
      format_bytes(bytes.host_states), waiting, exchange_name(lack.least.exchange),
      format_bytes(bytes.gpu_states), format_bytes(lack.host_have_bytes),
      format_bytes(lack.host_memory_bytes), format_bytes(lack.bytes_short()), other_choice);
}

}  // namespace elixir::planner
