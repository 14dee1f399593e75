// Chunks placed on the GPU from a stored folder: into images on the host, and up.

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/throw_error.h"
#include "checkpoint/left_out.h"
#include "checkpoint/value_check.h"
#include "client/train/stored_run.h"
#include "optim_cpu/master.h"
#include "shm/message.h"

namespace elixir {
namespace {

using checkpoints::LoadPiece;
using checkpoints::LoadRange;
using checkpoints::StateKind;

// A piece of a file is read whole for each group of chunks that has a part in it, so that groups of
// several pieces read little twice.
constexpr uint64_t kGroupBytes = uint64_t{256} << 20;
constexpr uint64_t kConvertNumel = 1024;

// Images of a rank's shards of the chunks [first, first + count). Different threads bring different
// elements.
class Images final : public checkpoints::StateSink {
 public:
  Images(const RunPlan& plan, uint32_t rank, uint32_t first, uint32_t count)
      : plan_(plan),
        shape_(plan.shape),
        rank_(rank),
        first_(first),
        count_(count),
        memory_(std::make_unique<std::byte[]>(count * shape_.image_bytes())) {}

  std::byte* image(uint32_t chunk) {
    return memory_.get() + (chunk - first_) * shape_.image_bytes();
  }
  bool has(uint32_t parameter) const {
    const shm::ChunkRun run = shm::chunks_of(plan_.chunks.places[parameter], shape_);
    return run.first < first_ + count_ && run.end() > first_;
  }

  void forget_moments() {
    for (uint32_t chunk = first_; chunk < first_ + count_; ++chunk) {
      std::byte* const moments = image(chunk) + shape_.image_moment_offset(0);
      std::fill(moments, image(chunk) + shape_.image_bytes(), std::byte{0});
    }
  }

  void take(const LoadRange& range, std::span<const std::byte> bytes) override {
    const shm::ParameterPlace& place = plan_.chunks.places[range.parameter];
    if (range.numel == 0) return;
    const shm::ChunkRun run = shm::chunks_of(place, shape_, range.first, range.numel);
    const uint32_t end = std::min(run.end(), first_ + count_);
    for (uint32_t chunk = std::max(run.first, first_); chunk < end; ++chunk) {
      const shm::ParameterPart part = shm::part_in(place, shape_, chunk, range.first, range.numel);
      take_into(chunk, part.offset, part.offset + part.numel, range,
                bytes.data() + (part.first - range.first) * range.dtype->bytes);
    }
  }

 private:
  // Elements [begin, end) of the chunk.
  void take_into(uint32_t chunk, uint64_t begin, uint64_t end, const LoadRange& range,
                 const std::byte* bytes) {
    const uint64_t from = std::max(begin, shape_.shard_begin(rank_));
    const uint64_t to = std::min(end, shape_.shard_end(rank_));
    for (uint64_t at = from; at < to; at += kConvertNumel) {
      put(range, bytes + (at - begin) * range.dtype->bytes, image(chunk),
          {at - shape_.shard_begin(rank_), std::min(kConvertNumel, to - at)});
    }
  }

  struct Elements {
    uint64_t first, numel;  // of the shard
  };

  void put(const LoadRange& range, const std::byte* bytes, std::byte* image,
           const Elements& of) const {
    std::byte* const param = image + of.first * element_bytes(shape_.type);
    std::byte* const master =
        image + shape_.image_master_offset() + of.first * master_bytes(shape_.type);
    switch (range.kind) {
      case StateKind::kExpAvg:
      case StateKind::kExpAvgSq: {
        const uint32_t moment = range.kind == StateKind::kExpAvg ? 0 : 1;
        std::memcpy(image + shape_.image_moment_offset(moment) + of.first * sizeof(float), bytes,
                    of.numel * sizeof(float));
        return;
      }
      case StateKind::kMasterLow: {
        uint16_t low[kConvertNumel];
        std::memcpy(low, bytes, of.numel * sizeof(uint16_t));
        optim::complete_master(shape_.type, low, of.numel, param, master);
        return;
      }
      case StateKind::kParam:
      case StateKind::kMaster: {
        float values[kConvertNumel];
        optim::read_values(range.dtype->name, bytes, of.numel, values);
        optim::load_master(shape_.type, values, of.numel, param, master);
        return;
      }
    }
  }

  const RunPlan& plan_;
  const shm::Shape& shape_;
  const uint32_t rank_, first_, count_;
  const std::unique_ptr<std::byte[]> memory_;
};

// Those of which the images have a part, with that part alone.
std::vector<LoadPiece> pieces_for(const Images& images, const std::vector<LoadPiece>& pieces) {
  std::vector<LoadPiece> own;
  for (const LoadPiece& piece : pieces) {
    LoadPiece part{piece.file, piece.offset, piece.bytes, piece.xxh3, {}};
    std::copy_if(piece.ranges.begin(), piece.ranges.end(), std::back_inserter(part.ranges),
                 [&](const LoadRange& range) { return images.has(range.parameter); });
    if (!part.ranges.empty()) own.push_back(std::move(part));
  }
  return own;
}

}  // namespace

void load_device_chunks(const StoredRun& run, const RunPlan& plan, Exchange& exchange,
                        uint32_t threads) {
  const shm::Shape& shape = plan.shape;
  const auto most = static_cast<uint32_t>(
      std::clamp<uint64_t>(kGroupBytes / shape.image_bytes(), 1, shm::kMaxChunks));
  for (uint32_t first = shape.n_chunks; first < shape.all_chunks(); first += most) {
    const uint32_t count = std::min(most, shape.all_chunks() - first);
    Images images(plan, run.of.rank, first, count);
    for (uint32_t i = 0; i < count; ++i) exchange.read_image(first + i, images.image(first + i));
    if (run.of.states) images.forget_moments();
    // Of each parameter with a part in the images all ranges are read, so that counts are whole.
    checkpoints::ValueCheck checked(run.of.parameters, shape.type, images);
    for (const auto* pieces : {&run.plan.params, &run.plan.states}) {
      throw_if_error(checkpoints::read_pieces(run.folder, pieces_for(images, *pieces), threads,
                                              nullptr, checked));
    }
    throw_if_error(checked.status(run.folder, run.plan));
    for (uint32_t i = 0; i < count; ++i) exchange.load_image(first + i, images.image(first + i));
  }
}

checkpoints::LeftOut values_on_device(Exchange& exchange, const RunPlan& plan) {
  const shm::Shape& shape = plan.shape;
  const uint64_t element = element_bytes(shape.type), numel = shape.gathered_numel();
  std::vector<float> masters(numel);
  std::vector<std::byte> params(numel * element), completions(numel * master_bytes(shape.type));
  checkpoints::LeftOut here;
  for (uint32_t chunk = shape.n_chunks; chunk < shape.all_chunks(); ++chunk) {
    exchange.read_masters(chunk, masters.data());
    optim::load_master(shape.type, masters.data(), numel, params.data(), completions.data());
    for (const shm::ParameterPlace& place : plan.chunks.places) {
      const shm::ChunkRun run = shm::chunks_of(place, shape);
      if (!run.contains(chunk)) continue;
      const shm::ParameterPart part = shm::part_in(place, shape, chunk);
      here.hash += checkpoints::left_out_hash(
          place.name, part.first, element,
          std::span(params).subspan(part.offset * element, part.numel * element));
      if (chunk != run.first) continue;
      ++here.parameters;
      here.bytes += place.numel * element;
    }
  }
  return here;
}

Status verdict_of_first(Exchange& exchange, uint32_t ranks, Status own) {
  if (ranks == 1) return own;
  struct Verdict {
    Code code;
    char text[1020];
  } verdict{own.code(), {}};
  shm::set_text(verdict.text, own.message().substr(0, sizeof verdict.text - 1));
  exchange.broadcast(std::as_writable_bytes(std::span(&verdict, 1)));
  if (!own.ok() || verdict.code == Code::kOk) return own;
  return Status(verdict.code, std::string(shm::get_text(verdict.text)));
}

}  // namespace elixir
