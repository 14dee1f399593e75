#include "client/train/weights.h"

#include <ATen/core/grad_mode.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/throw_error.h"
#include "client/exchange/load_chunks.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/resolved.h"
#include "client/train/compute_alone.h"

namespace elixir {
namespace {

class ModuleValues final : public ValueSource {
 public:
  explicit ModuleValues(const std::vector<ModuleParameter>& parameters) : parameters_(parameters) {}

  void begin_thread() override { compute_alone(); }
  void draw(uint32_t parameter, std::span<float> values) override {
    const at::NoGradGuard no_grad;
    const at::Tensor source =
        resolved(materialise(parameters_.at(parameter).tensor)).to(at::kFloat).contiguous();
    ELIXIR_CHECK(static_cast<uint64_t>(source.numel()) == values.size(),
                 "parameter {} has {} values, and room for {}", parameter, source.numel(),
                 values.size());
    std::copy_n(source.const_data_ptr<float>(), values.size(), values.begin());
  }

 private:
  const std::vector<ModuleParameter>& parameters_;
};

}  // namespace

void load_weights(Exchange& exchange, const RunPlan& plan,
                  const std::vector<ModuleParameter>& parameters, bool gives, uint32_t threads) {
  ModuleValues values(parameters);
  load_chunks(exchange, plan.shape, plan.chunks.places, gives ? &values : nullptr, threads);
  exchange.await_loaded(CollectiveKind::kLoad);
}

namespace {

// Two bytes a value: exact whatever the chunk's type, and finite whatever the bytes.
std::vector<float> as_values(std::span<const std::byte> bytes) {
  std::vector<float> values((bytes.size() + 1) / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    values[i / 2] += std::to_integer<int>(bytes[i]) * (i % 2 == 0 ? 1.0f : 256.0f);
  }
  return values;
}

std::byte byte_of(std::span<const float> values, size_t at) {
  const auto pair = static_cast<uint32_t>(values[at / 2]);
  return static_cast<std::byte>(at % 2 == 0 ? pair & 0xff : pair >> 8);
}

uint64_t kinds_xxh64(const std::vector<MovedTensor>& rest) {
  std::string kinds;
  for (const MovedTensor& item : rest) {
    kinds += fmt::format("{} {} {};", item.name, c10::str(item.values.sizes()),
                         item.values.dtype().name());
  }
  return XXH64(kinds.data(), kinds.size(), 0);
}

}  // namespace

void share_the_rest(Exchange& exchange, const RunPlan& plan, std::vector<MovedTensor>& rest) {
  const bool possible =
      plan.shape.exchange == shm::Exchange::kCollective || plan.shape.n_chunks > 0;
  if (plan.shape.ranks == 1 || !possible) return;
  const at::NoGradGuard no_grad;
  const uint64_t mine = kinds_xxh64(rest);
  uint64_t first = mine;
  std::vector<float> head = as_values(std::as_bytes(std::span(&first, 1)));
  exchange.broadcast(head);
  auto* const to = reinterpret_cast<std::byte*>(&first);
  for (size_t i = 0; i < sizeof first; ++i) to[i] = byte_of(head, i);
  if (first != mine) {
    throw Error(error(Code::kInvalidArgument,
                      "buffers (or parameters that are left out) differ from rank 0's in name, "
                      "type or size: build the same model on every rank"));
  }
  for (MovedTensor& item : rest) {
    if (item.values.numel() == 0) continue;
    item.values = item.values.contiguous().clone();
    auto* const bytes = static_cast<std::byte*>(item.values.mutable_data_ptr());
    const size_t n_bytes = item.values.nbytes();
    std::vector<float> values = as_values({bytes, n_bytes});
    exchange.broadcast(values);
    for (size_t i = 0; i < n_bytes; ++i) bytes[i] = byte_of(values, i);
  }
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
    const shm::ChunkRun run = shm::chunks_of(*place, plan.shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      const shm::ParameterPart part = shm::part_in(*place, plan.shape, chunk);
      if (chunk != in_hand) exchange.read_masters(chunk, masters.data());
      in_hand = chunk;
      XXH64_update(hash.get(), masters.data() + part.offset, part.numel * sizeof(float));
    }
  }
  return XXH64_digest(hash.get());
}

}  // namespace elixir
