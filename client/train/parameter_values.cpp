#include "client/train/parameter_values.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/throw_error.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/resolved.h"
#include "client/tensors/scalar_type.h"
#include "shm/load_part.h"

namespace elixir {
namespace {

at::ScalarType dtype_of(const HeldValues& held) { return scalar_type(held.plan.shape.type); }

shm::ChunkRun run_of(const HeldValues& held, uint32_t parameter) {
  return shm::chunks_of(held.plan.chunks.places[parameter], held.plan.shape);
}

shm::ParameterPart part_of(const HeldValues& held, uint32_t parameter, uint32_t chunk) {
  return shm::part_in(held.plan.chunks.places[parameter], held.plan.shape, chunk);
}

// The parts of a parameter in its chunks, cut by the shards of this node's ranks.
struct Piece {
  uint32_t chunk, rank;
  uint64_t first, numel;  // in the rank's shard
  uint64_t in_parameter;  // where the piece begins there
};
std::vector<Piece> pieces_of(const HeldValues& held, uint32_t parameter) {
  const shm::Shape& shape = held.plan.shape;
  ELIXIR_CHECK(parameter < held.parameters.size(), "parameter {} of {}", parameter,
               held.parameters.size());
  std::vector<Piece> pieces;
  const shm::ChunkRun run = run_of(held, parameter);
  for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
    const shm::ParameterPart part = part_of(held, parameter, chunk);
    for (uint32_t rank = 0; rank < held.ranks_here; ++rank) {
      const uint64_t begin = std::max(part.offset, shape.shard_begin(rank));
      const uint64_t end = std::min(part.offset + part.numel, shape.shard_end(rank));
      if (begin >= end) continue;
      pieces.push_back({chunk, rank, begin - shape.shard_begin(rank), end - begin,
                        part.first + (begin - part.offset)});
    }
  }
  return pieces;
}

// Its masters, or a moment.
at::Tensor read_fp32(const HeldValues& held, uint32_t parameter, std::optional<uint32_t> moment) {
  at::Tensor whole = at::empty(held.parameters[parameter].tensor.sizes(), at::kFloat);
  auto* const to = whole.mutable_data_ptr<float>();
  std::vector<float> of_device;  // values of a chunk placed on this rank's device
  uint32_t device_chunk = UINT32_MAX;
  for (const Piece& piece : pieces_of(held, parameter)) {
    if (!held.plan.shape.on_gpu(piece.chunk)) {
      if (moment) {
        held.session.read_moment(piece.chunk, piece.rank, *moment, piece.first, piece.numel,
                                 to + piece.in_parameter);
      } else {
        held.session.read_masters(piece.chunk, piece.rank, piece.first, piece.numel,
                                  to + piece.in_parameter);
      }
      continue;
    }
    if (std::exchange(device_chunk, piece.chunk) != piece.chunk) {
      of_device.resize(held.plan.shape.gathered_numel());
      if (moment) {
        held.exchange.read_moment(piece.chunk, *moment, of_device.data());
      } else {
        held.exchange.read_masters(piece.chunk, of_device.data());
      }
    }
    const uint64_t begin = held.plan.shape.shard_begin(piece.rank) + piece.first;
    std::copy_n(of_device.data() + begin, piece.numel, to + piece.in_parameter);
  }
  return whole;
}

}  // namespace

void read_chunk(const HeldValues& held, uint32_t chunk, std::vector<float>& values) {
  const shm::Shape& shape = held.plan.shape;
  values.assign(shape.gathered_numel(), 0);
  if (!shape.frozen(chunk)) return held.exchange.read_masters(chunk, values.data());
  for (uint32_t i = 0; i < held.parameters.size(); ++i) {
    if (!run_of(held, i).contains(chunk)) continue;
    const shm::ParameterPart part = part_of(held, i, chunk);
    const at::Tensor here = at::empty(held.parameters[i].tensor.sizes(), dtype_of(held));
    here.copy_(held.parameters[i].tensor);
    const auto* const bytes = static_cast<const std::byte*>(here.const_data_ptr());
    shm::take_part(bytes + part.first * here.element_size(), part.numel,
                   shm::frozen_part(shape.type), values.data() + part.offset);
  }
}

// ---- read by one rank ----

void require_all_here(const HeldValues& held, const char* who, uint32_t parameter) {
  const std::string& name = held.parameters[parameter].name;
  if (held.ranks_here != held.plan.shape.ranks) {
    throw Error(error(Code::kInvalidArgument,
                      "{} of '{}' in a job of several nodes, of which each has a part: release() "
                      "brings the whole model to one process",
                      who, name));
  }
  const shm::Shape& shape = held.plan.shape;
  const bool shared = shape.exchange == shm::Exchange::kCollective;
  if (!shared || !shape.on_gpu(held.plan.chunks.places[parameter].chunk)) return;
  throw Error(error(Code::kInvalidArgument,
                    "{} of '{}', whose states are on the devices of all ranks: save the run with "
                    "save(), or keep all states in host memory (gpu_state_share = 0, "
                    "--gpu-state-share 0)",
                    who, name));
}

at::Tensor read_value(const HeldValues& held, uint32_t parameter) {
  // Masters are rounded as the update rounds them.
  if (!held.parameters[parameter].frozen) {
    return read_fp32(held, parameter, std::nullopt).to(dtype_of(held));
  }
  at::Tensor whole = at::empty(held.parameters[parameter].tensor.sizes(), dtype_of(held));
  const size_t bytes = whole.element_size();
  auto* const to = static_cast<std::byte*>(whole.mutable_data_ptr());
  for (const Piece& piece : pieces_of(held, parameter)) {
    std::copy_n(held.session.param_shard(piece.chunk, piece.rank) + piece.first * bytes,
                piece.numel * bytes, to + piece.in_parameter * bytes);
  }
  return whole;
}

ParameterState read_state(const HeldValues& held, uint32_t parameter) {
  return {.step = 0,
          .exp_avg = read_fp32(held, parameter, 0),
          .exp_avg_sq = read_fp32(held, parameter, 1),
          .master = read_fp32(held, parameter, std::nullopt)};
}

// ---- set by all ranks ----

void NewValues::add(const HeldValues& held, const char* who, uint32_t parameter,
                    const at::Tensor& values) {
  const at::Tensor& tensor = held.parameters[parameter].tensor;
  if (!values.defined() || values.sizes() != tensor.sizes() || !values.is_floating_point()) {
    throw Error(error(Code::kInvalidArgument,
                      "{} of '{}' with values of shape {}; they must have shape {} and a "
                      "floating-point type",
                      who, held.parameters[parameter].name,
                      values.defined() ? c10::str(values.sizes()) : "none",
                      c10::str(tensor.sizes())));
  }
  values_[parameter] = values;
  of_chunk_[run_of(held, parameter).first].push_back(parameter);
}

std::vector<uint32_t> NewValues::parameters() const {
  std::vector<uint32_t> all;
  for (const auto& [parameter, values] : values_) all.push_back(parameter);
  return all;
}

std::vector<NewValues::Round> NewValues::rounds(const HeldValues& held) const {
  const std::vector<shm::ParameterPlace>& places = held.plan.chunks.places;
  std::vector<Round> rounds;
  Round together;
  for (const auto& [first, given] : of_chunk_) {
    const auto has = std::count_if(places.begin(), places.end(),
                                   [chunk = first](const auto& p) { return p.chunk == chunk; });
    if (held.plan.shape.frozen(first) && static_cast<size_t>(has) > given.size()) {
      rounds.push_back({.chunks = {first}, .reads_frozen = true});
    } else {
      together.chunks.push_back(first);
    }
  }
  if (!together.chunks.empty()) rounds.push_back(std::move(together));
  return rounds;
}

void NewValues::prepare(const HeldValues& held, const Round& round) {
  for (const uint32_t first : round.chunks) {
    for (const uint32_t parameter : of_chunk_.at(first)) {
      at::Tensor& values = values_.at(parameter);
      if (chunk_storage_of(values) != nullptr) values = values.clone();
    }
  }
  ELIXIR_CHECK(kept_.empty() && !round.chunks.empty(), "a round of {} chunks begins in another",
               round.chunks.size());
  if (round.reads_frozen) read_chunk(held, round.chunks.front(), kept_);
}

void NewValues::set(const HeldValues& held, const Round& round) {
  for (const uint32_t first : round.chunks) set_run(held, first);
}

void NewValues::set_run(const HeldValues& held, uint32_t first) {
  const shm::Shape& shape = held.plan.shape;
  ELIXIR_CHECK(of_chunk_.contains(first), "chunk {} gets no values", first);
  const std::vector<uint32_t>& given = of_chunk_.at(first);
  const bool frozen = shape.frozen(first);
  const shm::LoadPart kind = frozen ? shm::frozen_part(shape.type) : shm::LoadPart::kWhole;
  std::vector<at::Tensor> here;
  for (const uint32_t parameter : given) {
    here.push_back(resolved(values_.at(parameter).detach())
                       .to(at::kCPU, frozen ? dtype_of(held) : at::kFloat)
                       .contiguous());
  }
  const shm::ChunkRun run = run_of(held, given.front());
  std::vector<float> chunk = std::move(kept_);
  kept_.clear();
  if (!frozen && run.count == 1) read_chunk(held, first, chunk);
  for (uint32_t number = run.first; number < run.end(); ++number) {
    if (chunk.empty() || run.count > 1) chunk.assign(shape.gathered_numel(), 0);
    for (size_t i = 0; i < given.size(); ++i) {
      const shm::ParameterPart part = part_of(held, given[i], number);
      const auto* const bytes = static_cast<const std::byte*>(here[i].const_data_ptr());
      shm::take_part(bytes + part.first * here[i].element_size(), part.numel, kind,
                     chunk.data() + part.offset);
    }
    held.exchange.hand_out(number, chunk.data());
    held.exchange.load(number, chunk.data());
  }
}

}  // namespace elixir
