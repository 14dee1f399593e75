#include "planner/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "planner/search/first_that.h"
#include "planner/search/step_of.h"
#include "shm/shape.h"

namespace elixir::planner {
namespace {

constexpr double kLeastGain = 0.0025;  // of a step: by less, no other number of slots is looked for
constexpr uint32_t kPlacementGrid = 16;  // shares of chunks on the GPU that are simulated at first

// From the steps of fewer and of more micro-steps, one of more + factor * (more - fewer).
StepTimes extended(const StepTimes& fewer, const StepTimes& more, double factor) {
  StepTimes times = more;
  for (double StepTimes::*const time : std::initializer_list<double StepTimes::*>{
           &StepTimes::step_s, &StepTimes::compute_s, &StepTimes::h2d_s, &StepTimes::d2h_s,
           &StepTimes::g2g_s, &StepTimes::update_s, &StepTimes::exposed_s}) {
    times.*time += factor * (more.*time - fewer.*time);
  }
  for (uint64_t StepTraffic::*const count : {&StepTraffic::h2d_bytes, &StepTraffic::d2h_bytes,
                                             &StepTraffic::g2g_bytes, &StepTraffic::gathers}) {
    times.*count += static_cast<uint64_t>(factor * static_cast<double>(more.*count - fewer.*count));
  }
  return times;
}

}  // namespace

Search::Search(const Setting& setting, const PlanRequest& request, uint64_t allowed_bytes)
    : setting_(setting),
      request_(request),
      allowed_bytes_(allowed_bytes),
      benefits_(
          benefits(setting.machine, setting.packing.chunk_numel, setting.profile.dtype_bytes())) {
  const auto steps = chunks_of_steps(setting.profile, setting.packing);
  const auto regions = chunks_of_regions(setting.profile, setting.packing);
  const LeastBlocks fewest = planner::least_blocks(steps, setting.packing);
  const LeastBlocks region = planner::least_blocks(regions, setting.packing);
  fewest_ = std::max(fewest_, fewest.blocks);
  region_ = std::max(region.blocks, fewest_);
  fewest_long_ = std::max(fewest_long_, fewest.long_blocks);
  if (request.policy == Policy::kElixir) {
    const uint32_t otherwise = request.update == UpdateMode::kEarly ? 1 : 0;
    least_spare_slots_ = request.layout.spare_slots.value_or(otherwise);
  }
  best_.times.step_s = std::numeric_limits<double>::infinity();  // any is better
  starts_ = closed_forms();
}

// ---- what fits ----

// With the host exchange of several ranks elixird keeps all states: client/plan/run_plan refuses
// others.
bool Search::states_on_gpu(Exchange exchange) const {
  return exchange == Exchange::kCollective || setting_.machine.gpus == 1;
}

bool Search::runnable(const Candidate& candidate) const {
  const bool too_many =
      candidate.exchange == Exchange::kHost && setting_.machine.gpus > shm::kMaxSwingRanks;
  if (candidate.stride > 0 && too_many) return false;
  return candidate.gpu_chunks == 0 || states_on_gpu(candidate.exchange);
}

bool Search::host_holds(const Candidate& candidate) const {
  return bytes_of(setting_, candidate).host() <=
         usable_host_bytes(setting_.machine.host_memory_bytes);
}

bool Search::gpu_holds(const Candidate& candidate) const {
  return chosen_gpu_bytes(bytes_of(setting_, candidate)) <= allowed_bytes_;
}

uint32_t Search::least_blocks(uint32_t gpu_chunks, uint32_t needed) const {
  return std::min(needed, setting_.gathered_chunks(gpu_chunks));
}

// As many as are asked for; else those that any operator needs, and so many more.
uint32_t Search::long_blocks(uint32_t gpu_chunks, uint32_t more) const {
  const uint32_t asked = request_.layout.long_blocks;
  return std::min(std::max(fewest_long_, asked != 0 ? asked : fewest_long_ + more),
                  setting_.gathered_runs(gpu_chunks));
}

// With the chunks placed on the GPU given, the blocks and spare slots that are left or asked for;
// false: does not fit.
bool Search::fill(Candidate* candidate, uint32_t needed_blocks, uint32_t more_long_blocks) const {
  candidate->long_blocks = long_blocks(candidate->gpu_chunks, more_long_blocks);
  const uint32_t gathered = setting_.gathered_chunks(candidate->gpu_chunks);
  const uint32_t least = least_blocks(candidate->gpu_chunks, needed_blocks);
  const uint32_t asked = request_.layout.rcache_blocks;
  candidate->rcache_blocks = asked != 0 ? std::clamp(asked, least, gathered)
                                        : most_blocks(setting_, *candidate, allowed_bytes_);
  candidate->spare_slots = least_spare_slots(*candidate);
  if (candidate->rcache_blocks < least || !gpu_holds(*candidate) || !host_holds(*candidate) ||
      !runnable(*candidate)) {
    return false;
  }
  candidate->spare_slots = most_spare_slots(*candidate);
  return true;
}

// With which the host holds the others; all where it never does.
uint32_t Search::fewest_gpu_chunks(Exchange exchange) const {
  if (!states_on_gpu(exchange)) return 0;
  const auto holds = [&](uint32_t gpu_chunks) {
    Candidate candidate{.gpu_chunks = gpu_chunks, .exchange = exchange};
    candidate.spare_slots = least_spare_slots(candidate);
    return host_holds(candidate);
  };
  return setting_.packing.whole_runs_from(first_that(0, setting_.packing.n_chunks, holds));
}

// Beside so many blocks; where those do not fit, none.
uint32_t Search::most_gpu_chunks(Exchange exchange, uint32_t blocks, uint32_t stride) const {
  if (!states_on_gpu(exchange)) return 0;
  const auto too_many = [&](uint32_t gpu_chunks) {
    return !gpu_holds({.rcache_blocks = least_blocks(gpu_chunks, blocks),
                       .long_blocks = long_blocks(gpu_chunks),
                       .gpu_chunks = gpu_chunks,
                       .stride = stride,
                       .exchange = exchange});
  };
  const uint32_t all = setting_.packing.n_chunks;
  const uint32_t refused = first_that(0, all + 1, too_many);
  return refused == 0 ? 0 : setting_.packing.whole_runs(refused - 1);
}

std::vector<Exchange> Search::exchanges() const {
  const Machine& machine = setting_.machine;
  if (machine.gpus == 1) return {Exchange::kHost};
  if (machine.nodes > 1) return {Exchange::kCollective};
  if (request_.layout.exchange) return {*request_.layout.exchange};
  if (request_.policy != Policy::kElixir) return {Exchange::kCollective};
  if (machine.gpus > shm::kMaxLocalRanks) return {Exchange::kCollective};
  return {Exchange::kHost, Exchange::kCollective};
}

// The closed form's choice for each exchange that fits.
std::vector<Candidate> Search::closed_forms() const {
  std::vector<Candidate> found;
  for (const Exchange exchange : exchanges()) {
    if (const std::optional<Candidate> one = closed_form(exchange)) found.push_back(*one);
  }
  return found;
}

std::optional<Candidate> Search::closed_form(Exchange exchange) const {
  Candidate candidate{.exchange = exchange};
  const uint32_t n_chunks = setting_.packing.n_chunks;
  if (request_.layout.gpu_state_share) {
    candidate.gpu_chunks = asked_gpu_chunks();
    return fill(&candidate, fewest_) ? std::optional(candidate) : std::nullopt;
  }
  // The rCache holds a checkpointed region first; where it cannot, all chunks stay on the CPU.
  if (fill(&candidate, region_) || most_blocks(setting_, candidate, allowed_bytes_) >= region_) {
    const uint32_t blocks = benefits_.rcache_first() ? setting_.packing.total_chunks() : region_;
    candidate.gpu_chunks = most_gpu_chunks(exchange, asked_blocks(blocks));
  }
  if (fill(&candidate, fewest_)) return candidate;
  // Host memory may be what binds: as few chunks on the GPU as it needs, or all.
  for (const uint32_t gpu_chunks : {fewest_gpu_chunks(exchange), n_chunks}) {
    candidate.gpu_chunks = gpu_chunks;
    if (fill(&candidate, fewest_)) return candidate;
  }
  return {};
}

// REQUIRES: a share is asked for.
uint32_t Search::asked_gpu_chunks() const {
  const uint32_t n_chunks = setting_.packing.n_chunks;
  return setting_.packing.whole_runs(
      static_cast<uint32_t>(std::lround(*request_.layout.gpu_state_share * n_chunks)));
}

std::string Search::asked_by_flags() const {
  std::string asked;
  const auto add = [&asked](bool given, const char* flag) {
    if (given) asked += (asked.empty() ? "" : " and ") + std::string(flag);
  };
  const bool by_name =
      request_.policy == Policy::kElixir;  // else a strategy gives blocks and share
  add(request_.layout.chunk_numel != 0, "--chunk-numel");
  add(by_name && request_.layout.rcache_blocks != 0, "--rcache-blocks");
  add(by_name && request_.layout.long_blocks != 0, "--long-blocks");
  add(by_name && request_.layout.gpu_state_share.has_value(), "--gpu-state-share");
  add(request_.layout.exchange.has_value() && setting_.machine.gpus > 1, "--exchange");
  if (least_spare_slots_ == 0) return asked;
  const bool by_number = request_.layout.spare_slots.has_value();
  add(by_number, "--spare-slots");
  add(!by_number, "--update");
  return asked;
}

Lack Search::lack_of(Exchange exchange) const {
  Candidate least{.exchange = exchange};
  if (request_.layout.gpu_state_share) {
    least.gpu_chunks = asked_gpu_chunks();
  } else {
    least.gpu_chunks =
        std::min(fewest_gpu_chunks(exchange), most_gpu_chunks(exchange, asked_blocks(fewest_)));
  }
  least.rcache_blocks =
      least_blocks(least.gpu_chunks, std::max(fewest_, request_.layout.rcache_blocks));
  least.long_blocks = long_blocks(least.gpu_chunks);
  least.spare_slots = least_spare_slots(least);
  return make_lack(setting_, least, allowed_bytes_, asked_by_flags());
}

Lack Search::least_lack() const {
  ELIXIR_CHECK(!fits(), "something fits");
  std::vector<Lack> lacks;
  for (const Exchange exchange : exchanges()) lacks.push_back(lack_of(exchange));
  return *std::min_element(lacks.begin(), lacks.end(), lacks_less);
}

uint64_t Search::node_bytes(const PlanBytes& bytes) const {
  return setting_.machine.gpus / setting_.machine.nodes * bytes.gpu() + bytes.host();
}

uint64_t Search::long_numel(const Candidate& candidate) const {
  return candidate.long_blocks > 0 ? setting_.packing.long_numel() : 0;
}

LeastCandidate Search::least() const {
  ELIXIR_CHECK(fits(), "nothing fits");
  std::optional<LeastCandidate> least;
  const auto take = [&](Candidate candidate) {
    candidate.spare_slots = least_spare_slots(candidate);
    const LeastCandidate one = {.candidate = candidate,
                                .bytes = bytes_of(setting_, candidate),
                                .chunk_numel = setting_.packing.chunk_numel,
                                .long_numel = long_numel(candidate)};
    if (!least || node_bytes(one.bytes) < node_bytes(least->bytes)) least = one;
  };
  if (!request_.layout.gpu_state_share && request_.layout.rcache_blocks == 0) {
    for (const Exchange exchange : exchanges()) {
      Candidate candidate{.gpu_chunks = fewest_gpu_chunks(exchange), .exchange = exchange};
      if (!fill(&candidate, fewest_)) continue;
      candidate.rcache_blocks = least_blocks(candidate.gpu_chunks, fewest_);
      take(candidate);
    }
  }
  if (least) return *least;
  for (const Candidate& start : starts_) take(start);
  return *least;
}

// ---- what is fast ----

// The runtimes of other policies have no early updates.
UpdateMode Search::update_of(const Candidate& candidate) const {
  const UpdateMode asked = request_.update.value_or(
      candidate.spare_slots > 0 ? UpdateMode::kEarly : UpdateMode::kDeferred);
  const bool early = asked == UpdateMode::kEarly && request_.policy != Policy::kElixir;
  return early ? UpdateMode::kDeferred : asked;
}

StepRuntime Search::runtime_of(const Candidate& candidate) const {
  StepRuntime runtime;
  runtime.update = update_of(candidate);
  runtime.spare_slots = candidate.spare_slots;
  runtime.host_ahead = request_.host_ahead;
  // As client/exchange/collective_exchange: a gather goes before the reduction of the operator that
  // runs, and behind the one before. Where the host is the device, it is asked for on demand.
  if (candidate.exchange == Exchange::kCollective) {
    runtime.fetch_ahead = request_.host_ahead ? 1 : 0;
  }
  if (request_.update == UpdateMode::kSync) runtime.fetch_ahead = 0;
  if (request_.policy == Policy::kElixir) {
    runtime.grad_blocks =
        grad_blocks(shape_of(setting_, candidate), setting_.copies_at_once || setting_.paper);
    return runtime;
  }
  runtime.update = UpdateMode::kSync;
  runtime.fetch_ahead = 1;
  runtime.copies_hidden = setting_.machine.copies_hidden.value_or(kPaperCopiesHidden);
  runtime.evictions_copy_down = true;
  return runtime;
}

Result<StepTimes> Search::simulate(const StepModel& once) const {
  const uint32_t micro_steps = std::min(request_.accumulate, kMostMicroSteps);
  const Result<StepTimes> times = simulate_step(repeated(once, micro_steps));
  if (!times.ok() || request_.accumulate == micro_steps) return times;
  // Each further micro-step takes what the last ones took.
  const Result<StepTimes> fewer = simulate_step(repeated(once, micro_steps / 2));
  if (!fewer.ok()) return fewer.status();
  return extended(*fewer, *times, 2.0 * (request_.accumulate - micro_steps) / micro_steps);
}

// Grids are finer than there are chunks to place, and finer ones come by the same candidates: each
// is simulated once.
Result<StepTimes> Search::times_of(const Candidate& candidate) {
  const auto known = std::find_if(simulated_.begin(), simulated_.end(),
                                  [&](const Found& found) { return found.candidate == candidate; });
  if (known != simulated_.end()) return known->times;
  const Result<StepTimes> times = simulate(step_of(setting_, candidate, runtime_of(candidate)));
  if (times.ok()) simulated_.push_back({candidate, *times});
  return times;
}

// With as many spare slots as it has and, where that could be shorter, with as few as can be.
Status Search::consider(const Candidate& candidate) {
  if (candidate == best_.candidate) return Status();
  if (host_update_s(setting_, candidate) >= best_.times.step_s) return Status();
  const Result<StepTimes> times = times_of(candidate);
  if (!times.ok()) return times.status();
  if (times->step_s < best_.times.step_s) best_ = {candidate, *times};
  const double lost_s = (1 - kEarlyUpdateShare) * times->update_s;  // by updates out of place
  const bool fewer_may_be_best = times->step_s - lost_s < (1 - kLeastGain) * best_.times.step_s;
  Candidate fewest = candidate;
  fewest.spare_slots = least_spare_slots(candidate);
  if (fewest == candidate || fewest == best_.candidate || !fewer_may_be_best) return Status();
  const Result<StepTimes> fewer = times_of(fewest);
  if (!fewer.ok()) return fewer.status();
  if (fewer->step_s < best_.times.step_s) best_ = {fewest, *fewer};
  return Status();
}

Status Search::consider_placement(Exchange exchange, int64_t gpu_chunks) {
  if (gpu_chunks < 0 || gpu_chunks > setting_.packing.n_chunks) return Status();
  const uint32_t whole = setting_.packing.whole_runs(static_cast<uint32_t>(gpu_chunks));
  Candidate candidate{.gpu_chunks = whole, .exchange = exchange};
  return fill(&candidate, fewest_) ? consider(candidate) : Status();
}

// One long block more may save what it takes from the others.
Status Search::consider_long_blocks() {
  Candidate candidate = best_.candidate;
  const bool more = fill(&candidate, fewest_, /*more_long_blocks=*/1) &&
                    candidate.long_blocks > best_.candidate.long_blocks;
  return more ? consider(candidate) : Status();
}

// Every share of chunks on the GPU that fits, on a grid.
Status Search::look_around(Exchange exchange) {
  const uint32_t low = fewest_gpu_chunks(exchange);
  const uint32_t high = most_gpu_chunks(exchange, fewest_);
  if (low > high) return Status();
  for (uint64_t i = 0; i <= kPlacementGrid; ++i) {
    ELIXIR_RETURN_IF_ERROR(consider_placement(exchange, low + (high - low) * i / kPlacementGrid));
  }
  return Status();
}

Status Search::look() {
  ELIXIR_CHECK(fits(), "nothing fits");
  for (const Candidate& start : starts_) ELIXIR_RETURN_IF_ERROR(consider(start));
  if (request_.policy != Policy::kElixir || request_.layout.gpu_state_share) return Status();
  for (const Candidate& start : starts_) ELIXIR_RETURN_IF_ERROR(look_around(start.exchange));
  return Status();
}

Status Search::refine() {
  if (request_.policy != Policy::kElixir) return Status();
  if (!request_.layout.gpu_state_share) {
    const Exchange exchange = best_.candidate.exchange;
    const uint32_t most = most_gpu_chunks(exchange, fewest_);
    for (int64_t distance = most / kPlacementGrid / 2 + 1; distance > 0; distance /= 2) {
      const int64_t middle = best_.candidate.gpu_chunks;
      ELIXIR_RETURN_IF_ERROR(consider_placement(exchange, middle - distance));
      ELIXIR_RETURN_IF_ERROR(consider_placement(exchange, middle + distance));
    }
  }
  return consider_long_blocks();
}

}  // namespace elixir::planner
