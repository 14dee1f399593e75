#include "planner/search/make_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/units.h"
#include "planner/chunks/chunk_search.h"
#include "planner/search/benefit.h"
#include "planner/search/candidate.h"
#include "planner/search/refusal.h"
#include "planner/search/step_of.h"

namespace elixir::planner {
namespace {

constexpr uint32_t kMostHostRanks = 64;  // shm::kMaxLocalRanks
constexpr uint32_t kHomeGrid = 8;        // shares of chunks on the GPU that are simulated at first

// A step of so many rounds of forward and backward.
StepModel repeated(const StepModel& once, uint32_t rounds) {
  StepModel step = once;
  for (uint32_t round = 1; round < rounds; ++round) {
    step.operators.insert(step.operators.end(), once.operators.begin(), once.operators.end());
  }
  return step;
}

// From the steps of fewer and of more rounds, one of more + factor * (more - fewer).
StepTimes extended(const StepTimes& fewer, const StepTimes& more, double factor) {
  StepTimes times = more;
  for (double StepTimes::*const time :
       {&StepTimes::step_s, &StepTimes::compute_s, &StepTimes::h2d_s, &StepTimes::d2h_s,
        &StepTimes::g2g_s, &StepTimes::update_s, &StepTimes::exposed_s}) {
    times.*time += factor * (more.*time - fewer.*time);
  }
  for (uint64_t StepTimes::*const count :
       {&StepTimes::h2d_bytes, &StepTimes::d2h_bytes, &StepTimes::g2g_bytes, &StepTimes::gathers}) {
    times.*count += static_cast<uint64_t>(factor * static_cast<double>(more.*count - fewer.*count));
  }
  return times;
}

// One search: what it may choose among, and the best so far.
class Search {
 public:
  Search(const Setting& setting, const PlanRequest& request, uint64_t allowed_bytes)
      : setting_(setting),
        request_(request),
        allowed_bytes_(allowed_bytes),
        benefits_(
            benefits(setting.machine, setting.packing.chunk_numel, setting.profile.dtype_bytes)) {
    const auto steps = chunks_of_steps(setting.profile, setting.packing);
    const auto regions = chunks_of_regions(setting.profile, setting.packing);
    for (const auto& chunks : steps) fewest_ = std::max(fewest_, count(chunks));
    for (const auto& chunks : regions) region_ = std::max(region_, count(chunks));
    region_ = std::max(region_, fewest_);
  }

  // kResourceExhausted where nothing fits.
  Result<PlannedStep> run() {
    const std::vector<Candidate> starts = closed_forms();
    if (starts.empty()) return refuse();
    for (const Candidate& start : starts) ELIXIR_RETURN_IF_ERROR(consider(start));
    if (request_.policy == Policy::kElixir) {
      for (const Candidate& start : starts) ELIXIR_RETURN_IF_ERROR(look_around(start.exchange));
      if (request_.swing) ELIXIR_RETURN_IF_ERROR(consider_swing());
    }
    return finish();
  }

 private:
  static uint32_t count(const std::vector<uint32_t>& chunks) {
    return static_cast<uint32_t>(chunks.size());
  }

  std::vector<Exchange> exchanges() const {
    if (setting_.machine.gpus == 1) return {Exchange::kHost};
    if (request_.exchange) return {*request_.exchange};
    if (request_.policy != Policy::kElixir) return {Exchange::kCollective};
    if (setting_.machine.gpus > kMostHostRanks) return {Exchange::kCollective};
    return {Exchange::kHost, Exchange::kCollective};
  }

  bool fits(const Candidate& candidate) const {
    const PlanBytes bytes = bytes_of(setting_, candidate);
    return chosen_gpu_bytes(bytes) <= allowed_bytes_ &&
           static_cast<double>(bytes.host()) <=
               kHostShare * static_cast<double>(setting_.machine.host_memory_bytes);
  }
  // The client refuses it: client/train/run_plan.
  bool runnable(const Candidate& candidate) const {
    return !(setting_.accumulates && candidate.exchange == Exchange::kHost &&
             setting_.machine.gpus > 1 && candidate.gpu_chunks > 0);
  }

  // With the chunks of home gpu given, the blocks that are left or asked for; false: does not fit.
  bool fill(Candidate* candidate, uint32_t least_blocks) const {
    const uint32_t gathered = setting_.gathered_chunks(candidate->gpu_chunks);
    const uint32_t least = std::min(least_blocks, gathered);
    candidate->rcache_blocks = request_.rcache_blocks
                                   ? std::clamp(*request_.rcache_blocks, least, gathered)
                                   : most_blocks(setting_, *candidate, allowed_bytes_);
    return candidate->rcache_blocks >= least && fits(*candidate) && runnable(*candidate);
  }

  // The most chunks of home gpu with so many blocks at least; fewer blocks than asked for: none.
  uint32_t most_gpu_chunks(Candidate candidate, uint32_t blocks) const {
    uint32_t low = 0, high = setting_.packing.n_chunks;  // low fits, high + 1 does not
    while (low < high) {
      candidate.gpu_chunks = low + (high - low + 1) / 2;
      candidate.rcache_blocks = std::min(blocks, setting_.gathered_chunks(candidate.gpu_chunks));
      if (chosen_gpu_bytes(bytes_of(setting_, candidate)) <= allowed_bytes_) {
        low = candidate.gpu_chunks;
      } else {
        high = candidate.gpu_chunks - 1;
      }
    }
    return low;
  }

  // The closed form's choice for each exchange that fits.
  std::vector<Candidate> closed_forms() const {
    std::vector<Candidate> found;
    for (const Exchange exchange : exchanges()) {
      Candidate candidate;
      candidate.exchange = exchange;
      if (request_.gpu_home_share) {
        candidate.gpu_chunks = static_cast<uint32_t>(
            std::lround(*request_.gpu_home_share * setting_.packing.n_chunks));
        if (fill(&candidate, fewest_)) found.push_back(candidate);
        continue;
      }
      // The rCache holds a checkpointed region first; where it cannot, all chunks stay on the CPU.
      const bool holds_region = fill(&candidate, region_);
      if (holds_region || most_blocks(setting_, candidate, allowed_bytes_) >= region_) {
        const uint32_t blocks =
            benefits_.rcache_first() ? setting_.packing.total_chunks() : region_;
        candidate.gpu_chunks = most_gpu_chunks(candidate, request_.rcache_blocks.value_or(blocks));
      }
      if (fill(&candidate, fewest_)) {
        found.push_back(candidate);
        continue;
      }
      if (place_anywhere(&candidate)) found.push_back(candidate);
    }
    return found;
  }

  // Host memory may be what binds: any number of chunks on the GPU that fits.
  bool place_anywhere(Candidate* candidate) const {
    for (uint32_t n = 0; n <= setting_.packing.n_chunks; ++n) {
      candidate->gpu_chunks = n;
      if (fill(candidate, fewest_)) return true;
    }
    return false;
  }

  StepRuntime runtime_of(const Candidate& candidate) const {
    StepRuntime runtime;
    runtime.update = request_.update;
    runtime.host_ahead = request_.host_ahead;
    // Collectives need one order on all ranks: client/exchange/collective_exchange.
    const bool collective = candidate.exchange == Exchange::kCollective;
    if (collective || request_.update == UpdateTime::kAfterBackward) runtime.fetch_ahead = 0;
    if (request_.policy == Policy::kElixir) {
      runtime.grad_blocks = grad_blocks(setting_, candidate);
      return runtime;
    }
    runtime.update = UpdateTime::kAfterBackward;
    runtime.fetch_ahead = 1;
    runtime.copies_hidden = setting_.machine.copies_hidden.value_or(kPaperCopiesHidden);
    runtime.evictions_copy_down = true;
    return runtime;
  }

  Status consider(const Candidate& candidate) {
    if (candidate == best_) return Status();
    const StepModel once = step_of(setting_, candidate, runtime_of(candidate));
    const uint32_t rounds = std::min(request_.accumulate, kMostRounds);
    StepModel step = repeated(once, rounds);
    const Result<StepTimes> simulated = simulate_step(step);
    if (!simulated.ok()) return simulated.status();
    StepTimes times = *simulated;
    if (request_.accumulate > rounds) {  // each further round takes what the last ones took
      const Result<StepTimes> fewer = simulate_step(repeated(once, rounds / 2));
      if (!fewer.ok()) return fewer.status();
      times = extended(*fewer, times, 2.0 * (request_.accumulate - rounds) / rounds);
    }
    if (times.step_s >= times_.step_s) return Status();
    best_ = candidate;
    times_ = times;
    step_ = std::move(step);
    return Status();
  }

  Status consider_homes(Exchange exchange, int64_t gpu_chunks) {
    if (gpu_chunks < 0 || gpu_chunks > setting_.packing.n_chunks) return Status();
    Candidate candidate;
    candidate.exchange = exchange;
    candidate.gpu_chunks = static_cast<uint32_t>(gpu_chunks);
    return fill(&candidate, fewest_) ? consider(candidate) : Status();
  }

  // Every share of chunks on the GPU on a grid, then nearer and nearer around the best.
  Status look_around(Exchange exchange) {
    if (request_.gpu_home_share) return Status();
    const uint32_t n = setting_.packing.n_chunks;
    for (uint32_t i = 0; i <= kHomeGrid; ++i) {
      ELIXIR_RETURN_IF_ERROR(consider_homes(exchange, uint64_t{n} * i / kHomeGrid));
    }
    if (best_.exchange != exchange) return Status();
    for (int64_t distance = n / kHomeGrid / 2; distance > 0; distance /= 2) {
      const int64_t middle = best_.gpu_chunks;
      ELIXIR_RETURN_IF_ERROR(consider_homes(exchange, middle - distance));
      ELIXIR_RETURN_IF_ERROR(consider_homes(exchange, middle + distance));
    }
    return Status();
  }

  // Around the closed form's stride (Deep Optimizer States, eq. 1).
  Status consider_swing() {
    const uint32_t stride = swing_stride(setting_.machine);
    if (stride == 0) return Status();
    const Candidate without = best_;
    for (const uint32_t near : {stride - 1, stride, stride + 1}) {
      Candidate candidate = without;
      candidate.stride = near;
      if (near < 2) continue;
      bool fits = fill(&candidate, fewest_);
      while (!fits && candidate.gpu_chunks > 0) {  // its states need room on their way
        --candidate.gpu_chunks;
        fits = fill(&candidate, fewest_);
      }
      if (fits) ELIXIR_RETURN_IF_ERROR(consider(candidate));
    }
    return Status();
  }

  Status refuse() const {
    Need need;
    need.allowed_bytes = allowed_bytes_;
    need.blocks = std::min(fewest_, setting_.packing.total_chunks());
    for (const Exchange exchange : exchanges()) need.exchange = exchange;
    need.asked_blocks = request_.rcache_blocks;
    need.asked_gpu_share = request_.gpu_home_share;
    return refusal(setting_, need);
  }

  PlannedStep finish() {
    Plan plan;
    plan.model = setting_.profile.model;
    plan.gpus = setting_.machine.gpus;
    plan.tokens = setting_.profile.tokens;
    plan.checkpointed = !setting_.profile.checkpoint_regions.empty();
    plan.dtype_bytes = setting_.profile.dtype_bytes;
    plan.chunk_numel = setting_.packing.chunk_numel;
    plan.n_chunks = setting_.packing.total_chunks();
    plan.waste_ratio = setting_.packing.waste_ratio();
    plan.rcache_blocks = best_.rcache_blocks;
    plan.homes = homes_of(setting_, best_);
    plan.exchange = best_.exchange;
    plan.stride = best_.stride != 0 ? best_.stride : swing_stride(setting_.machine);
    plan.u_allowed_bytes = allowed_bytes_;
    plan.benefit_i = benefits_.i;
    plan.benefit_j = benefits_.j;
    plan.rcache_first = benefits_.rcache_first();
    plan.predicted = times_;
    plan.predicted_tflops =
        1e-12 * nominal_flops(setting_.profile) * request_.accumulate / times_.step_s;
    plan.bytes = bytes_of(setting_, best_);
    return {plan, setting_.packing, std::move(step_), setting_.machine.gpu_memory_bytes};
  }

  const Setting& setting_;
  const PlanRequest request_;
  const uint64_t allowed_bytes_;
  const Benefits benefits_;
  uint32_t fewest_ = 1;  // blocks, for any operator
  uint32_t region_ = 1;  // for any checkpointed region
  Candidate best_;
  StepTimes times_ = {.step_s = std::numeric_limits<double>::infinity()};
  StepModel step_;
};

Status check_request(const PlanRequest& request) {
  if (request.gpu_home_share && !(*request.gpu_home_share >= 0 && *request.gpu_home_share <= 1)) {
    return error(Code::kInvalidArgument, "a share of {} of the chunks on the GPU: it is 0 to 1",
                 *request.gpu_home_share);
  }
  if (request.accumulate == 0) {
    return error(Code::kInvalidArgument, "0 backward passes a step: at least one is needed");
  }
  if (request.chunk_numel > kMaxParameterNumel) {
    return error(Code::kInvalidArgument, "chunks of {} elements: {} at most are possible",
                 request.chunk_numel, kMaxParameterNumel);
  }
  if (request.rcache_blocks && *request.rcache_blocks == 0) {
    return error(Code::kInvalidArgument, "0 rCache blocks: operators need one at least");
  }
  return Status();
}

// As long as the longest parameter, at least.
Result<uint64_t> chunk_numel_of(const ModelProfile& profile, const PlanRequest& request,
                                uint64_t allowed_bytes) {
  const auto longest = std::max_element(
      profile.params.begin(), profile.params.end(),
      [](const ProfiledParameter& a, const ProfiledParameter& b) { return a.numel < b.numel; });
  const uint64_t least = round_up(longest->numel, kAlignNumel);
  if (request.chunk_numel != 0 && round_up(request.chunk_numel, kAlignNumel) < least) {
    return error(Code::kInvalidArgument,
                 "a chunk of {} elements cannot hold the parameter '{}' of {}: use a chunk length "
                 "of at least {} (--chunk-numel {}), or 0 to let Elixir choose",
                 request.chunk_numel, longest->name, longest->numel, least, least);
  }
  if (least * profile.dtype_bytes > allowed_bytes) {
    return refusal_of_parameter(*longest, least * profile.dtype_bytes, allowed_bytes);
  }
  return request.chunk_numel != 0 ? request.chunk_numel
                                  : search_chunk_numel(profile, allowed_bytes);
}

bool is_zero(Policy policy) {
  return policy == Policy::kZero2Offload || policy == Policy::kZero3Offload;
}

// The machine as a policy's runtime uses it.
Machine as_used(Machine machine, Policy policy) {
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

// What a strategy by name leaves to choose: nothing.
PlanRequest with_strategy(PlanRequest request, const Packing& packing) {
  if (request.policy == Policy::kZero2Offload) request.rcache_blocks = packing.total_chunks();
  if (request.policy == Policy::kZero3Offload) request.rcache_blocks = 1;  // as few as can be
  if (is_zero(request.policy)) request.gpu_home_share = 0;
  return request;
}

}  // namespace

Result<PlannedStep> make_plan(const ModelProfile& asked, const Machine& as_measured,
                              const PlanRequest& request) {
  ELIXIR_RETURN_IF_ERROR(check_profile(asked));
  ELIXIR_RETURN_IF_ERROR(check_machine(as_measured));
  ELIXIR_RETURN_IF_ERROR(check_request(request));
  const Machine machine = as_used(as_measured, request.policy);
  ModelProfile profile = in_first_use_order(asked);
  if (profile.tokens == 0) profile.tokens = request.tokens;
  if (profile.tokens == 0) {
    return error(Code::kInvalidArgument,
                 "the profile does not say how many tokens a step has: give --batch and --seq");
  }
  const uint64_t allowed = allowed_to(request.policy, machine, profile);
  if (allowed == 0) return refusal_of_activations(profile, machine);
  const Result<uint64_t> chunk_numel = chunk_numel_of(profile, request, allowed);
  if (!chunk_numel.ok()) return chunk_numel.status();
  const Packing packing = pack(packed_sizes(profile), *chunk_numel);
  const Setting setting{.profile = profile,
                        .machine = machine,
                        .packing = packing,
                        .whole_masters = request.whole_masters,
                        .accumulates = request.accumulate > 1,
                        .copies_at_once = request.copies_at_once,
                        .paper = request.policy != Policy::kElixir,
                        .grads_in_blocks = request.policy == Policy::kPaper};
  return Search(setting, with_strategy(request, packing), allowed).run();
}

}  // namespace elixir::planner
