#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <system_error>

#include "base/folder_names.h"
#include "base/host_memory.h"
#include "base/processors.h"
#include "base/subprocess.h"
#include "base/units.h"
#include "ctl/doctor.h"
#include "ctl/status_client.h"
#include "ctl/unanswered.h"
#include "shm/runtime_folder.h"
#include "shm/segment.h"

namespace elixir::ctl {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLeastBytes = 1ull << 30;     // below, not even the demo's model trains
constexpr uint64_t kHugePageBytes = 2ull << 20;  // what elixird asks for
constexpr uint64_t kSampleBytes = 32ull << 20;   // the least that Segment tries huge pages for
constexpr double kBf16BytesPerParameter = 14;    // docs/elixird.md, one rank

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

Finding examine_processors(const std::string& root) {
  const size_t usable = usable_processors().size();
  Finding finding{"processors", Severity::kOk, fmt::format("{} that this process may use", usable),
                  ""};
  const std::optional<ProcessorQuota> quota = processor_quota(root);
  if (!quota) return finding;
  finding.text += fmt::format("; a quota allows {:.2f} processors' time ({}): {} thread(s)",
                              quota->processors, quota->limit, parallel_threads(root));
  if (quota->processors < static_cast<double>(usable)) {
    finding.severity = Severity::kNote;
    finding.remedy = "raise the quota (docker run --cpus, resources.limits.cpu, CPUQuota=)";
  }
  return finding;
}

// "MemTotal" of a node's meminfo, whose lines are "Node 0 MemTotal: 123 kB".
uint64_t node_bytes(const std::string& folder) {
  std::ifstream file(folder + "/meminfo");
  std::string word;
  uint64_t kib = 0;
  while (file >> word) {
    if (word == "MemTotal:" && file >> kib) return kib * 1024;
  }
  return 0;
}

bool is_node(const std::string& name) {
  return name.size() > 4 && name.starts_with("node") &&
         std::isdigit(static_cast<unsigned char>(name[4])) != 0;
}

Finding examine_numa(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::vector<std::string> nodes;
  for (const std::string& name : folder_names(folder).value_or(std::vector<std::string>())) {
    if (!is_node(name)) continue;
    const std::string path = fmt::format("{}/{}", folder, name);
    nodes.push_back(fmt::format("{}: processors {}, {}", name.substr(4),
                                first_word(path + "/cpulist"), format_bytes(node_bytes(path))));
  }
  std::sort(nodes.begin(), nodes.end());
  if (nodes.empty())
    return {"numa nodes", Severity::kOk, "the system does not report any: assumed to be one", ""};
  return {"numa nodes", Severity::kOk, fmt::format("{}", fmt::join(nodes, "; ")), ""};
}

Finding examine_memory(const std::string& root) {
  const MemoryRoom room = memory_room(root);
  Finding finding{
      "memory", Severity::kOk,
      fmt::format("{} available ({}): {:.2f} G parameters in BF16 on one rank",
                  format_bytes(room.available_bytes), room.limit,
                  static_cast<double>(room.available_bytes) / kBf16BytesPerParameter * 1e-9),
      ""};
  if (room.available_bytes < kLeastBytes) {
    finding.severity = Severity::kProblem;
    finding.text += fmt::format("; the least is {}", format_bytes(kLeastBytes));
    finding.remedy =
        "end other programs, or raise the limit named (ELIXIR_MEMORY_ROOM where the machine has "
        "more than it says)";
  }
  return finding;
}

// Shared memory as elixird makes it, and the pages that it got.
Finding examine_huge_pages() {
  const Result<shm::Segment> sample = shm::Segment::create("elixir-doctor", kSampleBytes);
  if (!sample.ok()) {
    return {"shared memory", Severity::kProblem, sample.status().message(),
            "memfd_create must be allowed: look at the container's seccomp profile and its memory"};
  }
  const uint64_t page_bytes = sample->page_bytes();
  const std::string text = fmt::format("pages of {} for shared memory", format_bytes(page_bytes));
  if (page_bytes >= kHugePageBytes) return {"huge pages", Severity::kOk, text, ""};
  return {"huge pages", Severity::kNote, text + ": the update would gain by 2 MiB",
          "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, as root; or sysctl "
          "vm.nr_hugepages=N, N times 2 MiB for all jobs"};
}

Finding examine_memlock() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  // elixird raises its own as far as it may.
  if (limit.rlim_max == RLIM_INFINITY) return {"memlock", Severity::kOk, "unlimited", ""};
  struct sysinfo machine {};
  const bool swaps = ::sysinfo(&machine) == 0 && machine.totalswap > 0;
  return {"memlock", swaps ? Severity::kNote : Severity::kOk,
          format_bytes(limit.rlim_max) + (swaps ? ": states beyond it may be swapped out"
                                                : "; this machine swaps nothing out"),
          swaps ? "ulimit -l unlimited, LimitMEMLOCK= of a unit, or MemorySwapMax=0" : ""};
}

Finding examine_dev_shm() {
  struct statvfs info {};
  const bool there = ::statvfs("/dev/shm", &info) == 0;
  return {"/dev/shm", Severity::kOk,
          fmt::format("{}; not used: states lie in sealed memfds",
                      there ? format_bytes(uint64_t{info.f_blocks} * info.f_frsize) : "absent"),
          ""};
}

#ifdef ELIXIR_LIBTORCH_ROOT

// "2.11.0" of the wheel's line __version__ = '2.11.0+cu130'.
std::string torch_version(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("__version__ =")) continue;
    const size_t first = line.find_first_of("0123456789");
    if (first == std::string::npos) return "";
    return line.substr(first, line.find_first_not_of("0123456789.", first) - first);
  }
  return "";
}

// The wheel's folder, as the loader finds it: LD_LIBRARY_PATH comes before the build's own.
std::string torch_folder() {
  const char* const folders = std::getenv("LD_LIBRARY_PATH");
  std::istringstream list(folders == nullptr ? "" : folders);
  for (std::string folder; std::getline(list, folder, ':');) {
    const std::filesystem::path library = std::filesystem::path(folder) / "libtorch_cpu.so";
    std::error_code ignored;
    if (std::filesystem::exists(library, ignored)) return library.parent_path().parent_path();
  }
  return ELIXIR_LIBTORCH_ROOT;
}

Finding examine_torch() {
  const std::string folder = torch_folder();
  const std::string found = torch_version(folder + "/version.py");
  if (found == ELIXIR_LIBTORCH_VERSION) {
    return {"libtorch", Severity::kOk, fmt::format("{} in {}", found, folder), ""};
  }
  return {"libtorch", Severity::kProblem,
          fmt::format("{} is needed, and {} has {}", ELIXIR_LIBTORCH_VERSION, folder,
                      found.empty() ? "none" : found),
          "scripts/build.sh, which installs it and builds"};
}

#else

Finding examine_torch() {
  return {"libtorch", Severity::kNote, "this build has no trainers (ELIXIR_WITH_TORCH=OFF)", ""};
}

#endif

std::string daemon_text(const Json& status) {
  const Json& daemon = status.at("daemon");
  return fmt::format("pid {}, version {}, {} jobs, pages of {}", daemon.at("pid").get<int64_t>(),
                     daemon.at("version").get<std::string>(), status.at("jobs").size(),
                     format_bytes(daemon.at("page_bytes").get<uint64_t>()));
}

// No elixird is no problem where one can be started.
Finding examine_elixird(const DoctorOptions& options) {
  const Result<shm::RuntimeFolder> folder = shm::open_runtime_folder(options.runtime_dir);
  const Result<std::vector<shm::RuntimeFolder>> folders = folders_to_ask(options.runtime_dir);
  for (const Status& status : {folder.status(), folders.status()}) {
    if (status.ok()) continue;
    return {"elixird", Severity::kProblem, status.message(), "export ELIXIR_RUNTIME_DIR=..."};
  }
  std::vector<std::string> running;
  for (const shm::RuntimeFolder& one : *folders) {
    const Result<std::string> answer = StatusClient(one.status_endpoint()).request();
    if (answer.ok()) {
      const Status version = version_of(*answer).status;
      try {
        if (version.ok()) {
          running.push_back(fmt::format("{} in {}", daemon_text(Json::parse(*answer)), one.path));
          continue;
        }
      } catch (const Json::exception&) {
        // A field is missing.
      }
    }
    if (answer.ok() || answer.status().code() == Code::kProtocol) {
      return {"elixird", Severity::kProblem,
              fmt::format("its answer in {} is of another version", one.path),
              "install elixirctl and elixird together, restart elixird"};
    }
    if (answer.status().code() == Code::kUnavailable) continue;
    const Unanswered why = why_unanswered(one.status_socket(), kStatusTimeoutMs);
    if (why.code != Code::kUnavailable) {
      return {"elixird", Severity::kProblem, why.what, why.remedy};
    }
  }
  if (!running.empty()) {
    return {"elixird", Severity::kOk, fmt::format("{}", fmt::join(running, "; ")), ""};
  }
  const std::string program = program_folder() + "/elixird";
  if (::access(program.c_str(), X_OK) != 0) {
    return {"elixird", Severity::kNote,
            fmt::format("none runs in {}, and {} does not exist: trainers look in PATH",
                        folder->path, program),
            "scripts/build.sh"};
  }
  return {"elixird", Severity::kOk,
          fmt::format("none runs in {}; elixir-run or a trainer starts one", folder->path), ""};
}

}  // namespace

std::vector<Finding> examine_host(const DoctorOptions& options) {
  return {examine_processors(options.root),
          examine_numa(options.root),
          examine_memory(options.root),
          examine_huge_pages(),
          examine_memlock(),
          examine_dev_shm(),
          examine_torch(),
          examine_elixird(options)};
}

}  // namespace elixir::ctl
