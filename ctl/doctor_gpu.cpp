#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/gpu.h"
#include "base/host_memory.h"
#include "base/units.h"
#include "ctl/doctor.h"
#include "kernels/gpu_probe.h"

namespace elixir::ctl {
namespace {

using Json = nlohmann::json;

constexpr size_t kAnswerBytes = 256 << 10;
constexpr size_t kCopyBytes = 256 << 20;  // two buffers of it on the host and on the GPU

// What the probe may lock of the memory that is there: at most a sixteenth in each of two buffers.
size_t copy_bytes(const std::string& root) {
  return std::min<uint64_t>(kCopyBytes, memory_room(root).available_bytes / 16);
}

Result<Json> ask_probe(const DoctorOptions& options, std::string* path) {
  const Result<DynamicLibrary> library = DynamicLibrary::load(options.cuda_library);
  if (!library.ok()) return library.status();
  *path = library->path();
  const auto probe = library->function<ElixirGpuProbe>(ELIXIR_GPU_PROBE_FUNCTION);
  if (!probe.ok()) return probe.status();
  std::string answer(kAnswerBytes, '\0');
  const size_t bytes = (*probe)(answer.data(), answer.size(), copy_bytes(options.root));
  answer.resize(std::min(bytes, answer.size() - 1));
  Json report = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object()) {
    return error(Code::kVersionMismatch,
                 "the probe of {} gave {} bytes that are not a JSON object; install or build it "
                 "together with elixirctl",
                 *path, bytes);
  }
  return report;
}

// "H100, 79.65 GiB (...), NUMA node 0, 0000:c1:00.0; 55.1 GB/s to it, ..."
std::string gpu_text(const Json& gpu) {
  const auto text = [&](const char* key) { return gpu.value(key, std::string()); };
  const auto rate = [&](const char* key) { return gpu.value(key, 0.0); };
  const auto size = [&](const char* key) { return format_bytes(gpu.value(key, uint64_t{0})); };
  const int node = gpu.value("numa_node", -1);
  return fmt::format(
      "{}: {}, {} ({} free), compute capability {}, {}, NUMA node {}; link {:.1f} GB/s to it, "
      "{:.1f} from it, {:.1f} both ways at once",
      gpu.value("index", -1), text("name"), size("memory_bytes"), size("free_bytes"),
      text("compute_capability"), text("pci_address"), node < 0 ? "unknown" : std::to_string(node),
      rate("h2d_gb_s"), rate("d2h_gb_s"), rate("both_gb_s"));
}

Finding gpu_finding(const Json& gpu, Severity worst) {
  Finding finding{"gpu", Severity::kOk, gpu_text(gpu), ""};
  const std::string failure = gpu.value("error", std::string());
  const std::string pinning = gpu.value("pinning_error", std::string());
  if (!failure.empty()) {
    finding.severity = worst;
    finding.remedy = failure;
  } else if (!pinning.empty()) {
    finding.severity = worst;
    finding.text +=
        "; host memory CANNOT BE PAGE-LOCKED: a training's copies would be as slow as these, and "
        "hold it up";
    finding.remedy = pinning + "; ulimit -l unlimited, in a container --ulimit memlock=-1";
  } else {
    // Trainers map for writing what they page-lock, so they need no more.
    finding.text +=
        gpu.value("read_only_pinning", false)
            ? "; host memory can be page-locked, read-only mappings too"
            : "; host memory can be page-locked, except read-only mappings (not needed)";
  }
  return finding;
}

std::vector<Finding> findings_of(const Json& report, const std::string& path, Severity worst) {
  const auto text = [&](const char* key) { return report.value(key, std::string()); };
  std::vector<Finding> findings = {{"cuda library", Severity::kOk,
                                    fmt::format("{}: CUDA {}, NCCL {}, LibTorch {}", path,
                                                text("runtime"), text("nccl"), text("torch")),
                                    ""}};
  const std::string failure = text("error");
  const std::string driver = text("driver");
  findings.push_back({"driver", failure.empty() ? Severity::kOk : worst,
                      driver.empty() ? "none" : fmt::format("for CUDA up to {}", driver), failure});
  for (const Json& gpu : report.value("gpus", Json::array())) {
    findings.push_back(gpu_finding(gpu, worst));
  }
  return findings;
}

}  // namespace

std::vector<Finding> examine_gpus(const DoctorOptions& options, Json* report) {
  *report = nullptr;
  if (!options.gpu && !gpu_present(options.root)) {
    return {{"gpu", Severity::kOk, "none shows; training runs on CPUs (--gpu looks harder)", ""}};
  }
  const Severity worst = options.gpu ? Severity::kProblem : Severity::kNote;
  std::string path;
  const Result<Json> answer = ask_probe(options, &path);
  if (!answer.ok()) {
    return {{"cuda library", worst, "cannot be used", answer.status().message()}};
  }
  try {
    *report = *answer;
    return findings_of(*answer, path, worst);
  } catch (const Json::exception& failure) {
    return {{"cuda library", worst, fmt::format("{} answers in another form", path),
             fmt::format("install or build it together with elixirctl ({})", failure.what())}};
  }
}

}  // namespace elixir::ctl
