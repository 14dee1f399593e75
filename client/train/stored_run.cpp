#include "client/train/stored_run.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "base/throw_error.h"
#include "client/tensors/stored_type.h"

namespace elixir {
namespace {

std::string read_if_there(const checkpoints::StoredFolder& folder, const std::string& name) {
  const std::vector<checkpoints::ManifestFile>& files = folder.manifest->files;
  const bool there =
      std::any_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
  return there ? value_or_throw(checkpoints::read_stored_file(folder, name)) : "";
}

LoadReport report_of(const StoredRun& run) {
  LoadReport report{.path = run.folder.path};
  if (!run.folder.manifest) return report;
  report.step = run.folder.manifest->step;
  report.ranks = run.folder.manifest->ranks;
  report.has_states = run.plan.has_states;
  report.program = run.folder.manifest->program;
  report.rank_state = read_if_there(run.folder, fmt::format("user/rank-{}.bin", run.of.rank));
  return report;
}

// Puts bytes where a tensor has them.
class Tensors final : public checkpoints::StateSink {
 public:
  explicit Tensors(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  void take(const checkpoints::LoadRange& range, std::span<const std::byte> bytes) override {
    auto* const to = static_cast<std::byte*>(tensors_[range.parameter].mutable_data_ptr());
    std::copy(bytes.begin(), bytes.end(), to + range.first * range.dtype->bytes);
  }

 private:
  const std::vector<at::Tensor> tensors_;
};

}  // namespace

std::vector<std::string> ignored_in(const RunToLoad& of) {
  std::vector<std::string> names = of.copies;
  for (const auto& [name, shape] : of.rest) names.push_back(name);
  return names;
}

StoredRun open_run(const std::string& folder, RunToLoad of) {
  StoredRun run{.of = std::move(of),
                .folder = value_or_throw(checkpoints::open_stored_folder(folder)),
                .plan = {},
                .report = {}};
  run.plan = value_or_throw(checkpoints::plan_load(
      run.folder, run.of.parameters, {.states = run.of.states, .ignored = ignored_in(run.of)}));
  run.of.copies = run.plan.copies;
  run.report = report_of(run);
  return run;
}

std::map<std::string, at::Tensor> read_rest(const StoredRun& run) {
  std::map<std::string, at::Tensor> found;
  std::vector<checkpoints::WantedParameter> wanted;
  std::vector<at::Tensor> tensors;
  for (const checkpoints::StoredTensor& stored : run.folder.model) {
    const auto shape = run.of.rest.find(stored.name);
    if (shape == run.of.rest.end()) continue;
    const std::optional<at::ScalarType> type = scalar_type_of(stored.dtype->name);
    if (!type) {
      throw Error(error(Code::kBadInput, "{}: torch does not have its type {}",
                        run.folder.place_of(stored), stored.dtype->name));
    }
    wanted.push_back({stored.name, shape->second, /*trained=*/false});
    tensors.push_back(at::empty(shape->second, *type));
    found.emplace(stored.name, tensors.back());
  }
  if (wanted.empty()) return found;
  const checkpoints::LoadPlan plan = value_or_throw(checkpoints::plan_load(
      run.folder, wanted, {.states = false, .allow_rest = true, .any_dtype = true}));
  Tensors sink(std::move(tensors));
  throw_if_error(checkpoints::read_pieces(run.folder, plan.params, 1, nullptr, sink));
  return found;
}

}  // namespace elixir
