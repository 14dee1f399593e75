// A folder with a model, opened, planned and read: a plain one, one with an index, a checkpoint
// with any manifest, a checkpoint with any tensors. The first byte chooses.

#include <set>
#include <string>

#include "checkpoint/load_plan.h"
#include "checkpoint/stored_folder.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/rewritten_file.h"
#include "tests/fuzz/stored_folder_files.h"
#include "tests/support/temporary_folder.h"

namespace elixir::fuzz {
namespace {

using namespace checkpoints;

struct Folders {
  Folders() {
    shards.write(kModelName, model);
    for (const TemporaryFolder* folder : {&told, &made}) folder->write(kOptimizerName, optimizer);
    told.write(kModelName, model);
  }
  const std::string model = file_of(kModelHeader, kModelDataBytes);
  const std::string optimizer = file_of(kOptimizerHeader, kOptimizerDataBytes);
  const TemporaryFolder plain, shards, told, made;
  const RewrittenFile plain_file{plain.path("model.safetensors")};
  const RewrittenFile index{shards.path(kIndexName)};
  const RewrittenFile told_manifest{told.path(kManifestName)};
  const RewrittenFile made_model{made.path(kModelName)};
  const RewrittenFile made_manifest{made.path(kManifestName)};

  // Writes the input where it belongs; returns the folder.
  const std::string& write(Input input) const {
    const uint32_t choice = input.below(4);
    if (choice == 0) return plain_file.write(input.rest()), plain.path();
    if (choice == 1) return index.write(input.rest()), shards.path();
    if (choice == 2) {
      const std::string text = sealed(input.rest_text());
      told_manifest.write(std::as_bytes(std::span(text)));
      return told.path();
    }
    Manifest manifest;
    manifest.type = static_cast<ComputeType>(input.below(3));
    const uint64_t piece_bytes = input.below(256) + 1;
    manifest.files = {listed(kModelName, input.rest(), piece_bytes),
                      listed(kOptimizerName, std::as_bytes(std::span(optimizer)), piece_bytes)};
    made_model.write(input.rest());
    const std::string text = encode_manifest(manifest);
    made_manifest.write(std::as_bytes(std::span(text)));
    return made.path();
  }
};

// Counts; ranges lie within what was wanted.
class CheckRanges : public StateSink {
 public:
  CheckRanges(std::span<const WantedParameter> wanted, const StoredFolder& folder)
      : wanted_(wanted), folder_(folder) {}
  void take(const LoadRange& range, std::span<const std::byte> bytes) override {
    ELIXIR_CHECK(range.parameter < wanted_.size(), "a parameter");
    uint64_t numel = 1;
    for (const int64_t n : wanted_[range.parameter].shape) numel *= static_cast<uint64_t>(n);
    ELIXIR_CHECK(range.first < numel && range.numel <= numel - range.first, "a range");
    ELIXIR_CHECK(bytes.size() == range.numel * range.dtype->bytes, "bytes");
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    ELIXIR_CHECK(address % range.dtype->bytes == 0, "an address");
    if (range.kind == StateKind::kParam) taken_ += bytes.size();
  }
  // Each byte of each parameter was taken.
  void check_all() const {
    std::set<std::string_view> names;
    for (const WantedParameter& parameter : wanted_) names.insert(parameter.name);
    uint64_t bytes = 0;
    for (const StoredTensor& tensor : folder_.model) {
      if (names.contains(tensor.name)) bytes += tensor.end - tensor.begin;
    }
    ELIXIR_CHECK(bytes == taken_, "{} bytes of {}", taken_, bytes);
  }

 private:
  const std::span<const WantedParameter> wanted_;
  const StoredFolder& folder_;
  uint64_t taken_ = 0;
};

// All that can be read of the folder, as a model with just that would want it.
Status load(const StoredFolder& folder) {
  std::set<std::string> states;
  for (const StoredTensor& tensor : folder.optimizer) states.insert(tensor.name);
  std::vector<WantedParameter> wanted;
  for (const StoredTensor& tensor : folder.model) {
    wanted.push_back(
        {tensor.name, tensor.shape, states.contains("state." + tensor.name + ".exp_avg")});
  }
  const Result<LoadPlan> plan = plan_load(folder, wanted, {.any_dtype = true});
  if (!plan.ok()) return plan.status();
  CheckRanges sink(wanted, folder);
  ELIXIR_RETURN_IF_ERROR(read_pieces(folder, plan->params, 1, nullptr, sink));
  ELIXIR_RETURN_IF_ERROR(read_pieces(folder, plan->states, 1, nullptr, sink));
  sink.check_all();
  return folder.manifest.has_value() ? verify(folder, 1, nullptr) : Status();
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  static const fuzz::Folders folders;
  const std::string& path = folders.write(fuzz::Input(data, size));
  const Result<checkpoints::StoredFolder> folder = checkpoints::open_stored_folder(path);
  const Status status = folder.ok() ? fuzz::load(*folder) : folder.status();
  ELIXIR_CHECK(status.ok() || status.code() == Code::kBadInput, "{}", status.message());
  return 0;
}
