#include "client/train/weights.h"

#include <ATen/core/grad_mode.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "client/profile/meta_init.h"

namespace elixir {
namespace {

std::vector<std::vector<uint32_t>> parameters_by_chunk(const RunPlan& plan) {
  std::vector<std::vector<uint32_t>> chunks(plan.shape.total_chunks());
  for (uint32_t i = 0; i < plan.chunks.places.size(); ++i) {
    chunks[plan.chunks.places[i].chunk].push_back(i);
  }
  return chunks;
}

}  // namespace

void load_weights(Exchange& exchange, const RunPlan& plan,
                  const std::vector<ModuleParameter>& parameters, bool gives) {
  const at::NoGradGuard no_grad;
  const std::vector<std::vector<uint32_t>> chunks = parameters_by_chunk(plan);
  std::vector<float> values(plan.shape.gathered_numel());
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    // The frozen ones first: they go through a slot of the others.
    const uint32_t chunk = (plan.shape.all_chunks() + i) % plan.shape.total_chunks();
    std::fill(values.begin(), values.end(), 0.0f);
    for (const uint32_t index : chunks[chunk]) {
      if (!gives) break;
      const at::Tensor source = materialise(parameters[index].tensor).to(at::kFloat).contiguous();
      std::copy_n(source.const_data_ptr<float>(), source.numel(),
                  values.begin() + static_cast<ptrdiff_t>(plan.chunks.places[index].offset));
    }
    exchange.load_chunk(chunk, values.data());
  }
  exchange.await_loaded();
}

uint64_t masters_xxh64(Exchange& exchange, const RunPlan& plan) {
  std::vector<const shm::ParameterPlace*> places;
  for (const shm::ParameterPlace& place : plan.chunks.places) {
    if (!plan.shape.frozen(place.chunk)) places.push_back(&place);
  }
  std::sort(places.begin(), places.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> hash(XXH64_createState(),
                                                                        &XXH64_freeState);
  XXH64_reset(hash.get(), 0);
  std::vector<float> masters(plan.shape.gathered_numel());
  uint32_t in_hand = UINT32_MAX;  // names of one layer stand together, and so do its parameters
  for (const shm::ParameterPlace* place : places) {
    if (place->chunk != in_hand) exchange.read_masters(place->chunk, masters.data());
    in_hand = place->chunk;
    XXH64_update(hash.get(), masters.data() + place->offset, place->numel * sizeof(float));
  }
  return XXH64_digest(hash.get());
}

}  // namespace elixir
