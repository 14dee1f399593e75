#include "client/device/resident_states.h"

#include "base/check.h"
#include "optim_cpu/master.h"

namespace elixir {
namespace {

constexpr const char* kRemedy =
    "give fewer chunks the home gpu (--gpu-home-share), or cache fewer (--rcache-blocks)";

}  // namespace

ResidentStates::ResidentStates(Device& device, const shm::Shape& shape, uint32_t rank,
                               uint64_t grad_numel)
    : device_(device),
      shape_(shape),
      used_numel_(shape.shard_end(rank) - shape.shard_begin(rank)),
      grad_numel_(grad_numel) {
  const uint64_t numel = shape.n_gpu_chunks * shape.shard_numel();
  const auto take = [&](uint64_t bytes, const char* what) {
    return bytes == 0 ? nullptr : device.allocate(bytes, what, kRemedy);
  };
  params_ = take(numel * element_bytes(shape.type), "the parameters of chunks of home gpu");
  masters_ = take(numel * master_bytes(shape.type), "the masters of chunks of home gpu");
  exp_avg_ = reinterpret_cast<float*>(take(numel * 4, "exp_avg of chunks of home gpu"));
  exp_avg_sq_ = reinterpret_cast<float*>(take(numel * 4, "exp_avg_sq of chunks of home gpu"));
  grads_ = take(shape.n_gpu_chunks * grad_numel * element_bytes(shape.type),
                "the gradients of chunks of home gpu");
  done_ = device.create_event();
}

std::byte* ResidentStates::param(uint32_t chunk) const {
  return params_ + first(chunk) * element_bytes(shape_.type);
}

std::byte* ResidentStates::master(uint32_t chunk) const {
  return masters_ == nullptr ? nullptr : masters_ + first(chunk) * master_bytes(shape_.type);
}

std::byte* ResidentStates::grads(uint32_t chunk) const {
  ELIXIR_CHECK(grads_ != nullptr, "no gradients are kept on the device");
  return grads_ + (chunk - shape_.n_chunks) * grad_numel_ * element_bytes(shape_.type);
}

void ResidentStates::wait_for(Stream stream) {
  device_.record(done_, stream);
  device_.synchronize(done_);
}

void ResidentStates::load(uint32_t chunk, const float* values) {
  const uint64_t bytes = element_bytes(shape_.type), rest_bytes = master_bytes(shape_.type);
  std::vector<std::byte> params(used_numel_ * bytes), masters(used_numel_ * rest_bytes);
  optim::load_master(shape_.type, values, used_numel_, params.data(), masters.data());
  device_.upload(Stream::kUpload, param(chunk), params.data(), params.size());
  if (!masters.empty()) {
    device_.upload(Stream::kUpload, master(chunk), masters.data(), masters.size());
  }
  wait_for(Stream::kUpload);  // the sources end here
}

void ResidentStates::read_masters(uint32_t chunk, float* values) {
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

void ResidentStates::update(uint32_t chunk, std::span<const std::byte* const> grads,
                            const optim::AdamStep& constants) {
  if (used_numel_ == 0) return;
  const void* pointers[optim::kMaxGrads];
  ELIXIR_CHECK(grads.size() <= optim::kMaxGrads, "{} gradients", grads.size());
  for (size_t i = 0; i < grads.size(); ++i) pointers[i] = grads[i];
  optim::AdamSpan span;
  span.type = shape_.type;
  span.n_grads = static_cast<int>(grads.size());
  span.grads = pointers;
  span.param = param(chunk);
  span.master = master(chunk);
  span.exp_avg = exp_avg_ + first(chunk);
  span.exp_avg_sq = exp_avg_sq_ + first(chunk);
  span.numel = used_numel_;
  device_.update(Stream::kCompute, span, constants);
}

}  // namespace elixir
