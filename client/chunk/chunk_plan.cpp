#include "client/chunk/chunk_plan.h"

#include <algorithm>

#include "base/units.h"
#include "shm/shape.h"

namespace elixir {
namespace {

constexpr double kGoodWasteRatio = 0.03;
constexpr uint64_t kSearchSteps = 2000;

uint64_t aligned(uint64_t numel) { return round_up(numel, shm::kAlignNumel); }

uint64_t sum_numel(std::span<const ParameterSize> parameters) {
  uint64_t sum = 0;
  for (const ParameterSize& parameter : parameters) sum += parameter.numel;
  return sum;
}

// REQUIRES: no parameter is longer than chunk_numel.
uint32_t count_chunks(std::span<const ParameterSize> parameters, uint64_t chunk_numel) {
  uint32_t chunks = 1;
  uint64_t used_numel = 0;
  for (const ParameterSize& parameter : parameters) {
    if (used_numel + parameter.numel > chunk_numel) {
      ++chunks;
      used_numel = 0;
    }
    used_numel += aligned(parameter.numel);
  }
  return chunks;
}

uint64_t choose_chunk_numel(std::span<const ParameterSize> parameters, uint64_t largest_numel) {
  const uint64_t model_numel = sum_numel(parameters);
  const uint64_t first = aligned(largest_numel);
  const uint64_t last = std::max(2 * first, aligned(model_numel / 4));
  const uint64_t stride = std::max(shm::kAlignNumel, aligned((last - first) / kSearchSteps));
  uint64_t best = first;
  double best_waste = 1e300;
  for (uint64_t numel = first; numel <= last; numel += stride) {
    const double held = static_cast<double>(count_chunks(parameters, numel) * numel);
    const double waste = held / static_cast<double>(model_numel) - 1;
    if (waste < best_waste) {
      best = numel;
      best_waste = waste;
    }
    if (waste <= kGoodWasteRatio) break;
  }
  return best;
}

// Packs the parameters into chunks of their own, numbered behind those in the plan. Returns how
// many.
uint32_t pack(std::span<const ParameterSize> parameters, ChunkPlan& plan) {
  if (parameters.empty()) return 0;
  const uint32_t first = plan.places.empty() ? 0 : plan.places.back().chunk + 1;
  uint32_t chunk = first;
  uint64_t used_numel = 0;
  for (const ParameterSize& parameter : parameters) {
    if (used_numel + parameter.numel > plan.chunk_numel) {
      ++chunk;
      used_numel = 0;
    }
    plan.places.push_back({parameter.name, chunk, used_numel, parameter.numel, parameter.group});
    used_numel += aligned(parameter.numel);
  }
  return chunk + 1 - first;
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
    if (chunks.empty() || chunks.back() != place.chunk) chunks.push_back(place.chunk);
  }
  return chunks;
}

void give_home_gpu(ChunkPlan& plan, uint32_t n) {
  plan.n_gpu_chunks = n;
  const uint32_t n_cpu = plan.n_chunks - n;
  for (shm::ParameterPlace& place : plan.places) {
    if (place.chunk >= plan.n_chunks) break;  // frozen
    place.chunk = place.chunk < n ? n_cpu + place.chunk : place.chunk - n;
  }
}

Result<ChunkPlan> plan_chunks(std::span<const ParameterSize> parameters, uint64_t chunk_numel) {
  if (parameters.empty() || parameters[0].frozen) {
    return error(Code::kInvalidArgument,
                 "the model has no parameters that require gradients: nothing to train");
  }
  const auto largest = std::max_element(
      parameters.begin(), parameters.end(),
      [](const ParameterSize& a, const ParameterSize& b) { return a.numel < b.numel; });
  if (chunk_numel != 0 && largest->numel > aligned(chunk_numel)) {
    return error(Code::kInvalidArgument,
                 "a chunk of {} elements cannot hold the parameter '{}' of {}: use a chunk length "
                 "of at least {} (--chunk-numel {}), or 0 to let Elixir choose",
                 chunk_numel, largest->name, largest->numel, aligned(largest->numel),
                 aligned(largest->numel));
  }
  ChunkPlan plan;
  plan.chunk_numel =
      chunk_numel == 0 ? choose_chunk_numel(parameters, largest->numel) : aligned(chunk_numel);
  const auto frozen = std::find_if(parameters.begin(), parameters.end(),
                                   [](const ParameterSize& parameter) { return parameter.frozen; });
  plan.n_chunks = pack({parameters.begin(), frozen}, plan);
  plan.n_frozen_chunks = pack({frozen, parameters.end()}, plan);
  return plan;
}

}  // namespace elixir
