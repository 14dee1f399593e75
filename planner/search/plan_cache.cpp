#include "planner/search/plan_cache.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/text_file.h"
#include "planner/activations.h"
#include "planner/machine_cache.h"
#include "planner/machine_json.h"
#include "planner/plan/plan_json.h"
#include "planner/profile_json.h"

namespace elixir::planner {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "plan-";
constexpr size_t kSumDigits = 17;  // and the end of the line

// Another build may plan otherwise.
std::string this_build() {
  Dl_info info{};
  const bool found = ::dladdr(reinterpret_cast<const void*>(&plan_key), &info) != 0;
  const char* const path = found && info.dli_fname[0] == '/' ? info.dli_fname : "/proc/self/exe";
  struct stat file {};
  if (::stat(path, &file) != 0) return "";
  return fmt::format("{} {} {}", file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
}

std::string sum_of(std::string_view text) {
  return fmt::format("{:016x}\n", XXH3_64bits(text.data(), text.size()));
}

template <typename T>
std::string word(const std::optional<T>& value) {
  return value ? fmt::format("{}", static_cast<uint64_t>(*value)) : "-";
}

std::string text_of(const PlanRequest& request) {
  const LayoutOptions& layout = request.layout;
  return fmt::format(
      "{} {} {} {} {} {} {} {} {} {}", static_cast<int>(request.policy), request.tokens,
      word(layout.exchange), layout.long_blocks, word(layout.spare_slots),
      word(layout.swing_stride), word(request.update), request.accumulate, to_text(request.regions),
      2 * static_cast<int>(request.host_ahead) + static_cast<int>(request.copies_at_once));
}

std::string path_of(const std::string& folder, const std::string& key) {
  ELIXIR_CHECK(key.find('/') == key.npos, "a key with a path: {}", key);
  return fmt::format("{}/{}{}", folder, kPrefix, key);
}

}  // namespace

std::string plan_key(const ModelProfile& profile, const Machine& machine,
                     const PlanRequest& request) {
  Machine node = machine;
  node.nodes = 1;  // files are of one
  const std::string text = fmt::format("{}\n{}\n{} {} {}\n{}\n{}", this_build(), to_json(node),
                                       machine.nodes, machine.assumed_g2g, machine.scaled_from_gpus,
                                       text_of(request), to_json(profile));
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::optional<Plan> load_cached_plan(const std::string& key) {
  const Result<std::string> folder = cache_folder();
  if (!folder.ok()) return std::nullopt;
  const Result<std::string> file = read_ordinary_file(path_of(*folder, key));
  if (!file.ok()) return std::nullopt;
  const std::string_view text = std::string_view(*file).substr(std::min(kSumDigits, file->size()));
  if (!file->starts_with(sum_of(text))) return std::nullopt;  // damaged, or changed by hand
  Result<Plan> plan = plan_from_json(text);
  if (!plan.ok()) return std::nullopt;
  return std::move(*plan);
}

void store_cached_plan(const std::string& key, const Plan& plan) {
  const Result<std::string> folder = cache_folder();
  if (!folder.ok()) return;
  std::error_code failure;
  fs::create_directories(*folder, failure);
  const std::string path = path_of(*folder, key);
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  const std::string text = to_json(plan);
  if (write_text_file(temporary, sum_of(text) + text).ok()) {
    fs::rename(temporary, path, failure);
  } else {
    fs::remove(temporary, failure);
  }
  keep_newest(kPrefix, kMostCachedPlans, path);
}

}  // namespace elixir::planner
