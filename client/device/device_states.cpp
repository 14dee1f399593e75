#include "client/device/device_states.h"

#include <algorithm>

#include "base/check.h"
#include "optim_cpu/master.h"

namespace elixir {
namespace {

constexpr const char* kRemedy =
    "place fewer chunks on the GPU (--gpu-state-share), or cache fewer (--rcache-blocks)";

}  // namespace

DeviceStates::DeviceStates(Device& device, const shm::Shape& shape, uint32_t rank,
                           const std::vector<shm::ParameterPlace>& places, bool sums)
    : device_(device),
      shape_(shape),
      shard_begin_(shape.shard_begin(rank)),
      used_numel_(shape.shard_end(rank) - shape.shard_begin(rank)),
      has_sum_(shape.n_gpu_chunks, false) {
  const uint64_t numel = shape.n_gpu_chunks * shape.shard_numel();
  const auto take = [&](uint64_t bytes, const char* what) {
    return bytes == 0 ? nullptr : device.allocate(bytes, what, kRemedy);
  };
  params_ = take(numel * element_bytes(shape.type), "the parameters of chunks placed on the GPU");
  masters_ = take(numel * master_bytes(shape.type), "the masters of chunks placed on the GPU");
  for (uint32_t i = 0; i < shape.n_moments; ++i) {
    moments_[i] = reinterpret_cast<float*>(
        take(numel * sizeof(float), "a moment of chunks placed on the GPU"));
  }
  grads_ = take(numel * element_bytes(shape.type), "the gradients of chunks placed on the GPU");
  if (sums) allocate_sums();
  std::vector<std::vector<uint32_t>> by_chunk(shape.n_gpu_chunks);
  for (uint32_t i = 0; i < places.size(); ++i) {
    if (!shape.on_gpu(places[i].chunk)) continue;
    const shm::ChunkRun run = shm::chunks_of(places[i], shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      by_chunk[chunk - shape.n_chunks].push_back(i);
    }
  }
  for (uint32_t i = 0; i < by_chunk.size(); ++i) {
    pieces_.push_back(pieces_of(shape.n_chunks + i, by_chunk[i], places));
  }
  done_ = device.create_event();
}

// Of one chunk, whose parameters are `here`. Their ends, and what lies between them, go with the
// parameter before: gradients are zero there.
std::vector<DeviceStates::Piece> DeviceStates::pieces_of(
    uint32_t chunk, std::vector<uint32_t>& here,
    const std::vector<shm::ParameterPlace>& places) const {
  const auto offset_of = [&](uint32_t i) { return shm::part_in(places[i], shape_, chunk).offset; };
  std::sort(here.begin(), here.end(),
            [&](uint32_t a, uint32_t b) { return offset_of(a) < offset_of(b); });
  std::vector<Piece> pieces;
  for (size_t i = 0; i < here.size(); ++i) {
    const uint64_t end = i + 1 < here.size() ? offset_of(here[i + 1]) : shape_.chunk_numel;
    const uint64_t from = std::max(offset_of(here[i]), shard_begin_);
    const uint64_t to = std::min(end, shard_begin_ + used_numel_);
    if (from < to) pieces.push_back({from - shard_begin_, to - from, here[i]});
  }
  return pieces;
}

uint64_t DeviceStates::first(uint32_t chunk) const {
  ELIXIR_CHECK(shape_.on_gpu(chunk), "chunk {} is not placed on the GPU", chunk);
  return (chunk - shape_.n_chunks) * shape_.shard_numel();
}

std::byte* DeviceStates::param(uint32_t chunk) const {
  return params_ + first(chunk) * element_bytes(shape_.type);
}

std::byte* DeviceStates::master(uint32_t chunk) const {
  return masters_ == nullptr ? nullptr : masters_ + first(chunk) * master_bytes(shape_.type);
}

std::byte* DeviceStates::grads(uint32_t chunk) const {
  return grads_ + first(chunk) * element_bytes(shape_.type);
}

void DeviceStates::wait_for(Stream stream) {
  device_.record(done_, stream);
  device_.synchronize(done_);
}

void DeviceStates::load(uint32_t chunk, const float* values) {
  const uint64_t bytes = element_bytes(shape_.type), rest_bytes = master_bytes(shape_.type);
  std::vector<std::byte> params(used_numel_ * bytes), masters(used_numel_ * rest_bytes);
  optim::load_master(shape_.type, values, used_numel_, params.data(), masters.data());
  device_.upload(Stream::kUpload, param(chunk), params.data(), params.size());
  if (!masters.empty()) {
    device_.upload(Stream::kUpload, master(chunk), masters.data(), masters.size());
  }
  wait_for(Stream::kUpload);  // the sources end here
}

void DeviceStates::read_masters(uint32_t chunk, float* values) {
  wait_for(Stream::kCompute);  // the last update
  const uint64_t bytes = element_bytes(shape_.type), rest_bytes = master_bytes(shape_.type);
  std::vector<std::byte> params(used_numel_ * bytes), masters(used_numel_ * rest_bytes);
  device_.download(Stream::kDownload, params.data(), param(chunk), params.size());
  if (!masters.empty()) {
    device_.download(Stream::kDownload, masters.data(), master(chunk), masters.size());
  }
  wait_for(Stream::kDownload);
  optim::read_master(shape_.type, params.data(), masters.data(), used_numel_, values);
}

void DeviceStates::read_moment(uint32_t chunk, uint32_t moment, float* values) {
  ELIXIR_CHECK(moment < shape_.n_moments, "moment {} of {}", moment, shape_.n_moments);
  wait_for(Stream::kCompute);  // the last update
  device_.download(Stream::kDownload, reinterpret_cast<std::byte*>(values),
                   reinterpret_cast<const std::byte*>(moments_[moment] + first(chunk)),
                   used_numel_ * sizeof(float));
  wait_for(Stream::kDownload);
}

std::vector<DeviceStates::Array> DeviceStates::arrays(uint32_t chunk) const {
  std::vector<Array> all = {{param(chunk), 0, used_numel_ * element_bytes(shape_.type)}};
  if (masters_ != nullptr) {
    all.push_back(
        {master(chunk), shape_.image_master_offset(), used_numel_ * master_bytes(shape_.type)});
  }
  for (uint32_t i = 0; i < shape_.n_moments; ++i) {
    all.push_back({reinterpret_cast<std::byte*>(moments_[i] + first(chunk)),
                   shape_.image_moment_offset(i), used_numel_ * sizeof(float)});
  }
  return all;
}

void DeviceStates::read_image(uint32_t chunk, std::byte* image) {
  wait_for(Stream::kCompute);  // the last update
  for (const Array& array : arrays(chunk)) {
    device_.download(Stream::kDownload, image + array.image_offset, array.memory, array.bytes);
  }
  wait_for(Stream::kDownload);
}

void DeviceStates::load_image(uint32_t chunk, const std::byte* image) {
  for (const Array& array : arrays(chunk)) {
    device_.upload(Stream::kUpload, array.memory, image + array.image_offset, array.bytes);
  }
  wait_for(Stream::kUpload);  // the source may change
}

void DeviceStates::allocate_sums() {
  const uint64_t numel = shape_.n_gpu_chunks * shape_.shard_numel();
  sums_ = reinterpret_cast<float*>(device_.allocate(
      numel * sizeof(float), "the FP32 sums of gradients of chunks placed on the GPU",
      "set the number of backward passes a step (accumulate), so that the plan knows it, or place "
      "fewer chunks on the GPU (--gpu-state-share)"));
}

float* DeviceStates::grad_sum(uint32_t chunk) const {
  return has_sum_[chunk - shape_.n_chunks] ? sums_ + first(chunk) : nullptr;
}

void DeviceStates::begin_micro_step(uint32_t chunk, uint32_t micro_step, Stream stream) {
  if (micro_step == 1) {
    has_sum_[chunk - shape_.n_chunks] = false;
  } else if (micro_step == 2) {
    if (sums_ == nullptr) allocate_sums();
    add_to_sum(chunk, /*begins=*/true, stream);
    has_sum_[chunk - shape_.n_chunks] = true;
  }
}

void DeviceStates::end_micro_step(uint32_t chunk, uint32_t micro_step, Stream stream) {
  if (micro_step > 1) add_to_sum(chunk, /*begins=*/false, stream);
}

void DeviceStates::add_to_sum(uint32_t chunk, bool begins, Stream stream) {
  device_.sum_gradients(stream, shape_.type, grads(chunk), shape_.shard_numel(),
                        sums_ + first(chunk), begins);
}

void DeviceStates::squared_norm(Stream stream, uint32_t chunk, std::byte* result) {
  const float* const sum = grad_sum(chunk);
  const ComputeType type = sum == nullptr ? shape_.type : ComputeType::kFp32;
  const auto* values = sum == nullptr ? grads(chunk) : reinterpret_cast<const std::byte*>(sum);
  device_.squared_norm(stream, type, values, shape_.shard_numel(), result);
}

void DeviceStates::update(uint32_t chunk, const optim::ParameterSteps& step) {
  const std::vector<Piece>& pieces = pieces_[chunk - shape_.n_chunks];
  for (size_t i = 0; i < pieces.size();) {
    // Those of one kind together: as a rule the whole chunk.
    const optim::AdamStep* const constants = step.of(pieces[i].parameter);
    Piece run = pieces[i];
    while (++i < pieces.size() && step.of(pieces[i].parameter) == constants) {
      run.numel += pieces[i].numel;
    }
    if (constants != nullptr) update(chunk, run, *constants);
  }
}

void DeviceStates::update(uint32_t chunk, const Piece& piece, const optim::AdamStep& constants) {
  const uint64_t bytes = element_bytes(shape_.type), rest_bytes = master_bytes(shape_.type);
  const void* const grads = this->grads(chunk) + piece.begin * bytes;
  const float* const sum = grad_sum(chunk);
  optim::UpdateSpan span;
  span.type = shape_.type;
  span.n_grads = 1;
  span.grads = &grads;
  span.grad_sum = sum == nullptr ? nullptr : sum + piece.begin;
  span.param = param(chunk) + piece.begin * bytes;
  span.master = masters_ == nullptr ? nullptr : master(chunk) + piece.begin * rest_bytes;
  for (uint32_t i = 0; i < shape_.n_moments; ++i) {
    span.moments[i] = moments_[i] + first(chunk) + piece.begin;
  }
  span.numel = piece.numel;
  device_.update(Stream::kCompute, span, constants);
}

}  // namespace elixir
