#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/probe/links.h"
#include "kernels/gpu_probe.h"

namespace elixir::probe {
namespace {

using Json = nlohmann::json;

constexpr size_t kAnswerBytes = 256 << 10;

// REQUIRES: an answer as kernels/gpu_probe.h has it; else throws Json::exception.
Result<GpuLinks> sum_up(const Json& answer, uint32_t wanted) {
  const std::string none = answer.at("error").get<std::string>();
  if (!none.empty()) return error(Code::kUnavailable, "{}", none);
  const Json& gpus = answer.at("gpus");
  const auto found = static_cast<uint32_t>(gpus.size());
  if (found == 0 || wanted > found) {
    return error(Code::kUnavailable, "{} GPUs are to be measured and {} show; give --gpus {}",
                 std::max(wanted, 1u), found, found);
  }
  GpuLinks links;
  links.gpus = wanted == 0 ? found : wanted;
  for (uint32_t i = 0; i < links.gpus; ++i) {
    const Json& gpu = gpus.at(i);
    const std::string failure = gpu.at("error").get<std::string>();
    if (!failure.empty()) return error(Code::kUnavailable, "GPU {}: {}", i, failure);
    links.rates.h2d_gb_s += gpu.at("h2d_gb_s").get<double>();
    links.rates.d2h_gb_s += gpu.at("d2h_gb_s").get<double>();
    links.rates.both_gb_s += gpu.at("both_gb_s").get<double>();
    if (links.pinning_error.empty()) links.pinning_error = gpu.at("pinning_error");
    const auto memory_bytes = gpu.at("memory_bytes").get<uint64_t>();
    links.memory_bytes = i == 0 ? memory_bytes : std::min(links.memory_bytes, memory_bytes);
  }
  links.name = gpus.at(0).at("name").get<std::string>();
  return links;
}

}  // namespace

Result<GpuLinks> measure_gpu_links(const LibrarySearch& search, uint32_t gpus, size_t copy_bytes) {
  const Result<DynamicLibrary> library = DynamicLibrary::load(search);
  if (!library.ok()) return library.status();
  const auto probe = library->function<ElixirGpuProbe>(ELIXIR_GPU_PROBE_FUNCTION);
  if (!probe.ok()) return probe.status();
  std::string text(kAnswerBytes, '\0');
  const size_t bytes = (*probe)(text.data(), text.size(), copy_bytes);
  text.resize(std::min(bytes, text.size() - 1));
  try {
    return sum_up(Json::parse(text), gpus);
  } catch (const Json::exception& failure) {
    return error(Code::kVersionMismatch,
                 "the probe of {} answers in another form ({}); install or build it together with "
                 "this program",
                 library->path(), failure.what());
  }
}

}  // namespace elixir::probe
