#include "planner/search/search_input.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "planner/activations.h"
#include "planner/choice_names.h"
#include "planner/chunks/chunk_search.h"
#include "planner/kept_regions.h"
#include "planner/search/benefit.h"
#include "planner/search/refusal.h"

namespace elixir::planner {
namespace {

Status check_request(const PlanRequest& request, const Machine& machine) {
  if (request.layout.gpu_state_share &&
      !(*request.layout.gpu_state_share >= 0 && *request.layout.gpu_state_share <= 1)) {
    return error(Code::kInvalidArgument, "a share of {} of the chunks on the GPU: it is 0 to 1",
                 *request.layout.gpu_state_share);
  }
  if (request.accumulate == 0) {
    return error(Code::kInvalidArgument, "0 backward passes a step: at least one is needed");
  }
  if (machine.gpus > 1 && request.layout.exchange == Exchange::kHost &&
      request.layout.gpu_state_share.value_or(0) > 0) {
    return error(Code::kInvalidArgument,
                 "the host exchange of {} GPUs with states on them: with it elixird keeps all "
                 "states. Use --exchange collective, or --gpu-state-share 0",
                 machine.gpus);
  }
  if (request.layout.spare_slots && request.policy != Policy::kElixir) {
    return error(Code::kInvalidArgument,
                 "{} spare slots: only Elixir's own runtime has them. Leave out --spare-slots, or "
                 "--policy",
                 *request.layout.spare_slots);
  }
  if (request.layout.spare_slots &&
      request.update.value_or(UpdateMode::kEarly) != UpdateMode::kEarly) {
    return error(Code::kInvalidArgument,
                 "{} spare slots and {} updates: slots are for early ones. Use --update early or "
                 "auto, or leave out --spare-slots",
                 *request.layout.spare_slots, name_in(kUpdateModeNames, *request.update));
  }
  if (request.layout.swing_stride.value_or(0) > 0 &&
      (request.policy != Policy::kElixir || request.update == UpdateMode::kImmediate)) {
    return error(Code::kInvalidArgument,
                 "swing chunks with {}: {}. Leave out --swing-stride, or that",
                 request.policy != Policy::kElixir ? "--policy" : "--update immediate",
                 request.policy != Policy::kElixir ? "only Elixir's own runtime has them"
                                                   : "they are updated once the verdict is known");
  }
  if (request.layout.chunk_numel > kMaxParameterNumel) {
    return error(Code::kInvalidArgument, "chunks of {} elements: {} at most are possible",
                 request.layout.chunk_numel, kMaxParameterNumel);
  }
  return Status();
}

// Refuses a GPU that cannot hold the longest parameter, and a length with too many chunks.
Status check_longest(const ModelProfile& profile, const PlanRequest& request,
                     uint64_t allowed_bytes) {
  const auto longest = std::max_element(
      profile.params.begin(), profile.params.end(),
      [](const ProfiledParameter& a, const ProfiledParameter& b) { return a.numel < b.numel; });
  const uint64_t least = round_up(longest->numel, kAlignNumel);
  const uint64_t asked = round_up(request.layout.chunk_numel, kAlignNumel);
  if (asked != 0 && profile.total_numel() / asked > shm::kMaxChunks) {
    return error(
        Code::kInvalidArgument,
        "chunks of {} elements make more than the {} of them that are possible: use longer "
        "ones (--chunk-numel {}), or 0 to let Elixir choose",
        request.layout.chunk_numel, shm::kMaxChunks, possible_chunk_numel(profile.total_numel()));
  }
  if (least * profile.dtype_bytes() > allowed_bytes) {
    return refusal_of_parameter(*longest, least * profile.dtype_bytes(), allowed_bytes);
  }
  return Status();
}

// The ZeRO policies' as well, where the profile does not describe operators.
ComputeMeasure measure_of(const ModelProfile& profile, Policy policy) {
  const bool described = !profile.step_work.empty();
  const bool papers = policy == Policy::kPaper || (is_zero(policy) && !described);
  return papers ? ComputeMeasure::kPaper : ComputeMeasure::kOperators;
}

// The machine as a policy's runtime uses it.
Machine as_used(Machine machine, Policy policy, ComputeMeasure measure) {
  const bool papers = measure == ComputeMeasure::kPaper;
  if (papers && machine.paper_tflops > 0) machine.gpu_tflops = machine.paper_tflops;
  if (!is_zero(policy)) return machine;
  machine.copies_hidden = 0;
  machine.cpu_update_gparam_s *= kCastingAdamShare;
  return machine;
}

// ZeRO keeps no margin: it runs until memory is out.
uint64_t allowed_to(Policy policy, const Machine& machine, const ModelProfile& profile) {
  if (!is_zero(policy)) return allowed_bytes(machine, profile);
  const uint64_t taken = profile.buffer_bytes + profile.activation_bytes;
  return machine.gpu_memory_bytes > taken ? machine.gpu_memory_bytes - taken : 0;
}

void set_memory(const PlanRequest& request, SearchInput* input) {
  input->allowed_bytes = allowed_to(request.policy, input->machine, input->profile);
  input->unfit = check_longest(input->profile, request, input->allowed_bytes);
  if (input->unfit.code() == Code::kInvalidArgument) return;
  if (input->allowed_bytes == 0) {
    input->unfit = refusal_of_activations(input->profile, input->machine);
  }
}

// Of a profile that does not say what they could keep.
uint32_t regions_in_forward(const ModelProfile& profile) {
  const auto& all = profile.checkpoint_regions;
  return static_cast<uint32_t>(std::count_if(all.begin(), all.end(), [&](const auto& region) {
    return region.last < profile.backward_first();
  }));
}

// Of the regions, so many may send their inputs within so many bytes; 0: no limit. The last one of
// them sends nothing, so one alone is none.
uint32_t most_boundaries(const ModelProfile& profile, uint64_t most_bytes) {
  const auto n = static_cast<uint32_t>(profile.regions.size());
  for (uint32_t count = n; count > 1; --count) {
    const RegionPlan plan{.regions = n, .host_boundaries = count};
    if (most_bytes == 0 || with_regions(profile, plan).sent_bytes <= most_bytes) return count;
  }
  return 0;
}

Status set_asked_regions(const PlanRequest& request, SearchInput* input) {
  using enum Activations::Mode;
  const auto n = static_cast<uint32_t>(input->profile.regions.size());
  input->region_plan.regions = n > 0 ? n : regions_in_forward(input->profile);
  const Activations& asked = request.regions;
  if (asked.mode == kAuto || asked.mode == kRecompute) return Status();
  if (asked.mode == kKeep && input->profile.checkpoint_regions.empty()) return Status();
  if (request.policy != Policy::kElixir) {
    return error(Code::kInvalidArgument,
                 "--activations {} with --policy: only Elixir's own runtime has regions that keep "
                 "something. Leave out one of them",
                 to_text(asked));
  }
  if (n == 0) {
    return error(Code::kInvalidArgument,
                 "--activations {}: the profile does not say what checkpointed regions could keep: "
                 "it has none, one of them reads no parameter, a step was measured, or "
                 "ELIXIR_STOP_EARLY is 0. Use --activations recompute or auto, or make it again",
                 to_text(asked));
  }
  input->region_plan = region_plan_for(asked, n);
  if (asked.mode == kHost) {  // the search says which products
    input->region_plan.host_products = 0;
    const auto most = most_boundaries(input->profile, asked.host_bytes);
    if (n > 1 &&
        with_regions(input->profile, {.regions = n, .host_boundaries = n}).sent_bytes == 0) {
      return error(Code::kInvalidArgument,
                   "--activations {}: in the profile no region has an input that can be sent. Use "
                   "--activations auto, or make it again if it is of an earlier release",
                   to_text(asked));
    }
    if (most == 0) {
      return error(Code::kInvalidArgument,
                   "--activations {}: not even one region's input fits into that, or there is one "
                   "region. Use more bytes, or --activations recompute",
                   to_text(asked));
    }
    input->region_plan.host_boundaries = most;
    return Status();
  }
  input->profile = with_regions(std::move(input->profile), input->region_plan);
  return Status();
}

}  // namespace

Result<SearchInput> search_input(const ModelProfile& asked, const Machine& as_measured,
                                 const PlanRequest& request) {
  ELIXIR_RETURN_IF_ERROR(check_profile(asked));
  ELIXIR_RETURN_IF_ERROR(check_machine(as_measured));
  ELIXIR_RETURN_IF_ERROR(check_request(request, as_measured));
  const ComputeMeasure measure = measure_of(asked, request.policy);
  SearchInput input{.profile = in_first_use_order(asked),
                    .machine = as_used(as_measured, request.policy, measure),
                    .measure = measure};
  ModelProfile& profile = input.profile;
  const Machine& machine = input.machine;
  if (machine.nodes > 1 && request.layout.exchange == Exchange::kHost) {
    return error(Code::kInvalidArgument,
                 "the host exchange serves the ranks of one node, and there are {}: use --exchange "
                 "collective, or auto",
                 machine.nodes);
  }
  if (profile.tokens == 0) profile.tokens = request.tokens;
  if (profile.tokens == 0) {
    return error(Code::kInvalidArgument,
                 "the profile does not say how many tokens a step has: give --batch and --seq");
  }
  if (profile.type == ComputeType::kFp32 &&
      machine.gpu_fp32_tflops == 0) {  // Plan::assumed_fp32 tells it
    input.machine.gpu_fp32_tflops = machine.gpu_tflops;
    input.assumed_fp32 = true;
  }
  ELIXIR_RETURN_IF_ERROR(set_asked_regions(request, &input));
  set_memory(request, &input);
  if (!input.unfit.ok() && input.unfit.code() != Code::kResourceExhausted) return input.unfit;
  return input;
}

SearchInput with_regions(const SearchInput& input, const PlanRequest& request,
                         const RegionPlan& plan) {
  SearchInput kept = input;
  kept.profile = with_regions(input.profile, plan);
  kept.region_plan = plan;
  set_memory(request, &kept);
  return kept;
}

}  // namespace elixir::planner
