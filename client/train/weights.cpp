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
#include "client/tensors/scalar_type.h"
#include "client/train/compute_alone.h"
#include "shm/load_part.h"

namespace elixir {
namespace {

class ModuleValues final : public ValueSource {
 public:
  ModuleValues(const std::vector<ModuleParameter>& parameters, ComputeType type)
      : parameters_(parameters), type_(type) {}

  void begin_thread() override { compute_alone(); }
  void draw(uint32_t parameter, std::span<float> values) override {
    const at::NoGradGuard no_grad;
    const bool frozen = parameters_.at(parameter).frozen;
    const at::Tensor source = resolved(materialise(parameters_[parameter].tensor))
                                  .to(frozen ? scalar_type(type_) : at::kFloat)
                                  .contiguous();
    ELIXIR_CHECK(static_cast<uint64_t>(source.numel()) == values.size(),
                 "parameter {} has {} values, and room for {}", parameter, source.numel(),
                 values.size());
    shm::take_part(static_cast<const std::byte*>(source.const_data_ptr()), values.size(),
                   frozen ? shm::frozen_part(type_) : shm::LoadPart::kWhole, values.data());
  }

 private:
  const std::vector<ModuleParameter>& parameters_;
  const ComputeType type_;  // of chunks
};

}  // namespace

void load_weights(Exchange& exchange, const RunPlan& plan,
                  const std::vector<ModuleParameter>& parameters, bool gives, uint32_t threads) {
  ModuleValues values(parameters, plan.shape.type);
  load_chunks(exchange, plan.shape, plan.chunks.places, gives ? &values : nullptr, threads);
  exchange.await_loaded(CollectiveKind::kLoad);
}

namespace {

uint64_t kinds_xxh64(const std::vector<MovedTensor>& rest) {
  std::string kinds;
  for (const MovedTensor& item : rest) {
    kinds += fmt::format("{} {} {};", item.name, c10::str(item.values.sizes()),
                         item.values.dtype().name());
  }
  return XXH64(kinds.data(), kinds.size(), 0);
}

}  // namespace

namespace {

// What is broadcast together: ranks meet for each broadcast.
constexpr size_t kTogetherBytes = 1 << 20;

class Broadcasts {
 public:
  explicit Broadcasts(Exchange& exchange) : exchange_(exchange) {}

  // Rank 0's bytes are there once send() has returned.
  void add(std::span<std::byte> bytes) {
    if (bytes_ + bytes.size() > kTogetherBytes) send();
    waiting_.push_back(bytes);
    bytes_ += bytes.size();
  }

  void send() {
    if (waiting_.size() == 1) {
      exchange_.broadcast(waiting_[0]);
    } else if (bytes_ > 0) {
      std::vector<std::byte> together;
      together.reserve(bytes_);
      for (const auto& bytes : waiting_)
        together.insert(together.end(), bytes.begin(), bytes.end());
      exchange_.broadcast(together);
      size_t at = 0;
      for (const auto& bytes : waiting_) {
        std::copy_n(together.begin() + static_cast<std::ptrdiff_t>(at), bytes.size(),
                    bytes.begin());
        at += bytes.size();
      }
    }
    waiting_.clear();
    bytes_ = 0;
  }

 private:
  Exchange& exchange_;
  std::vector<std::span<std::byte>> waiting_;
  size_t bytes_ = 0;
};

}  // namespace

void share_the_rest(Exchange& exchange, const RunPlan& plan, std::vector<MovedTensor>& rest) {
  if (plan.shape.ranks == 1) return;
  const at::NoGradGuard no_grad;
  for (const MovedTensor& item : rest) {
    if (const char* const kind = special_kind(item.values)) {
      throw Error(error(Code::kInvalidArgument,
                        "'{}' is {}: ranks get rank 0's bytes of what is in no chunk, and those "
                        "are not all of it; register the ordinary tensors that it is made of, or "
                        "train on one rank",
                        item.name, kind));
    }
  }
  const uint64_t mine = kinds_xxh64(rest);
  uint64_t first = mine;
  exchange.broadcast(std::as_writable_bytes(std::span(&first, 1)));
  if (first != mine) {
    throw Error(error(Code::kInvalidArgument,
                      "buffers (or parameters that are left out) differ from rank 0's in name, "
                      "type or size: build the same model on every rank"));
  }
  Broadcasts broadcasts(exchange);
  for (MovedTensor& item : rest) {
    if (item.values.numel() == 0) continue;
    item.values = item.values.contiguous().clone();
    broadcasts.add({static_cast<std::byte*>(item.values.mutable_data_ptr()), item.values.nbytes()});
  }
  broadcasts.send();
}

void share_buffers(Exchange& exchange, const std::vector<NamedTensor>& buffers) {
  if (buffers.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  Broadcasts broadcasts(exchange);
  for (const NamedTensor& buffer : buffers) {
    if (buffer.tensor.numel() == 0) continue;
    values.push_back(buffer.tensor.detach().to(at::kCPU, false, true).contiguous());
    broadcasts.add(
        {static_cast<std::byte*>(values.back().mutable_data_ptr()), values.back().nbytes()});
  }
  broadcasts.send();
  auto value = values.begin();
  for (const NamedTensor& buffer : buffers) {
    if (buffer.tensor.numel() > 0) at::Tensor(buffer.tensor).copy_(*value++);
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
