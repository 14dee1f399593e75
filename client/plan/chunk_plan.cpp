#include "client/plan/chunk_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "planner/chunks/chunk_search.h"
#include "planner/chunks/packing.h"
#include "shm/shape.h"

namespace elixir {
namespace {

static_assert(planner::kAlignNumel == shm::kAlignNumel);

constexpr double kGoodWasteRatio = 0.03;
constexpr uint64_t kSearchSteps = 2000;
constexpr uint64_t kShortNumel = uint64_t{1}
                                 << 20;  // copies of shorter chunks cost by their number

uint64_t aligned(uint64_t numel) { return round_up(numel, shm::kAlignNumel); }

uint64_t sum_numel(std::span<const ParameterSize> parameters) {
  uint64_t sum = 0;
  for (const ParameterSize& parameter : parameters) sum += parameter.numel;
  return sum;
}

std::vector<planner::PackedSize> packed_sizes(std::span<const ParameterSize> parameters) {
  std::vector<planner::PackedSize> sizes;
  for (const ParameterSize& parameter : parameters) {
    sizes.push_back({parameter.numel, parameter.own_chunk, parameter.frozen});
  }
  return sizes;
}

// The longest parameter's, or that of the longest but a few that are far longer.
uint64_t shortest_length(std::span<const ParameterSize> parameters) {
  std::vector<uint64_t> numels;
  for (const ParameterSize& parameter : parameters) numels.push_back(parameter.numel);
  const uint64_t longest = aligned(*std::max_element(numels.begin(), numels.end()));
  return std::min(longest, std::max(planner::ordinary_length(std::move(numels)), kShortNumel));
}

uint64_t choose_chunk_numel(std::span<const ParameterSize> parameters) {
  const std::vector<planner::PackedSize> sizes = packed_sizes(parameters);
  const uint64_t model_numel = sum_numel(parameters);
  const uint64_t first = shortest_length(parameters);
  const uint64_t last = std::max(2 * first, aligned(model_numel / 4));
  const uint64_t stride = std::max(shm::kAlignNumel, aligned((last - first) / kSearchSteps));
  uint64_t best = first;
  double best_waste = 1e300;
  for (uint64_t numel = first; numel <= last; numel += stride) {
    const double held = static_cast<double>(planner::packed_length(sizes, numel).chunks * numel);
    const double waste = held / static_cast<double>(model_numel) - 1;
    if (waste < best_waste) {
      best = numel;
      best_waste = waste;
    }
    if (waste <= kGoodWasteRatio) break;
  }
  return best;
}

}  // namespace

double ChunkPlan::waste_ratio() const {
  const double held =
      static_cast<double>(n_chunks + n_frozen_chunks) * static_cast<double>(chunk_numel);
  return held / static_cast<double>(shm::total_numel(places)) - 1;
}

std::vector<uint32_t> ChunkPlan::order() const {
  std::vector<uint32_t> chunks;
  for (const shm::ParameterPlace& place : places) {
    if (place.chunk >= n_chunks) break;  // frozen
    if (!chunks.empty() && chunks.back() == place.chunk) continue;
    const auto end = place.chunk + shm::chunks_for(place.numel, chunk_numel);
    for (uint32_t chunk = place.chunk; chunk < end; ++chunk) chunks.push_back(chunk);
  }
  return chunks;
}

void place_on_gpu(ChunkPlan& plan, uint32_t n) {
  ELIXIR_CHECK(n <= plan.n_chunks && plan.n_gpu_chunks == 0,
               "{} of {} chunks are placed on the GPU, which {} have", n, plan.n_chunks,
               plan.n_gpu_chunks);
  for (const shm::ParameterPlace& place : plan.places) {
    const uint64_t end = place.chunk + shm::chunks_for(place.numel, plan.chunk_numel);
    if (place.chunk < n && end > n) n = place.chunk;
  }
  plan.n_gpu_chunks = n;
  const uint32_t n_cpu = plan.n_chunks - n;
  for (shm::ParameterPlace& place : plan.places) {
    if (place.chunk >= plan.n_chunks) break;  // frozen
    place.chunk = place.chunk < n ? n_cpu + place.chunk : place.chunk - n;
  }
}

void place_swing(ChunkPlan& plan, uint32_t stride) {
  ELIXIR_CHECK(plan.n_swing_chunks == 0, "{} chunks swing already", plan.n_swing_chunks);
  if (stride == 0) return;
  const uint32_t n_host = plan.n_chunks - plan.n_gpu_chunks;
  std::vector<bool> in_run(n_host, false);
  for (const shm::ParameterPlace& place : plan.places) {
    if (place.chunk >= n_host || place.numel <= plan.chunk_numel) continue;
    const uint64_t count = shm::chunks_for(place.numel, plan.chunk_numel);
    for (uint64_t i = 0; i < count; ++i) in_run[place.chunk + i] = true;
  }
  std::vector<uint32_t> staying, swinging;
  for (uint32_t chunk = 0; chunk < n_host; ++chunk) {
    (planner::swings(chunk, stride, in_run[chunk]) ? swinging : staying).push_back(chunk);
  }
  plan.n_swing_chunks = static_cast<uint32_t>(swinging.size());
  staying.insert(staying.end(), swinging.begin(), swinging.end());
  std::vector<uint32_t> number(n_host);
  for (uint32_t i = 0; i < n_host; ++i) number[staying[i]] = i;
  for (shm::ParameterPlace& place : plan.places) {
    if (place.chunk < n_host) place.chunk = number[place.chunk];
  }
}

Result<ChunkPlan> plan_chunks(std::span<const ParameterSize> parameters, uint64_t chunk_numel) {
  if (parameters.empty()) {
    return error(Code::kInvalidArgument, "the model has no parameters that could lie in chunks");
  }
  const uint64_t model_numel = sum_numel(parameters);
  // Before anything is made by chunk.
  const uint64_t fewest_chunks = chunk_numel == 0 ? 1 : model_numel / aligned(chunk_numel);
  if (fewest_chunks > shm::kMaxChunks) {
    return error(Code::kInvalidArgument,
                 "chunks of {} elements make {} of them, and {} are possible: use longer ones "
                 "(--chunk-numel {}), or 0 to let Elixir choose",
                 chunk_numel, fewest_chunks, shm::kMaxChunks,
                 planner::possible_chunk_numel(model_numel));
  }
  ChunkPlan plan;
  plan.chunk_numel = chunk_numel == 0 ? choose_chunk_numel(parameters) : aligned(chunk_numel);
  const planner::Packing packing = planner::pack(packed_sizes(parameters), plan.chunk_numel);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto [chunk, offset] = packing.places[i];
    ELIXIR_CHECK(offset == 0 || offset + parameters[i].numel <= plan.chunk_numel,
                 "'{}' lies beyond its chunk", parameters[i].name);
    plan.places.push_back({parameters[i].name, chunk, offset, parameters[i].numel});
  }
  plan.n_chunks = packing.n_chunks;
  plan.n_frozen_chunks = packing.n_frozen_chunks;
  return plan;
}

}  // namespace elixir
