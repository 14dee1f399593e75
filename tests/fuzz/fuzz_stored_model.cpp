// The files of a model, which are read from a path: an index of shards beside one good shard, or a
// .safetensors file. The first byte chooses.

#include <set>
#include <string>

#include "planner/estimate/stored_model.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/rewritten_file.h"
#include "tests/fuzz/stored_folder_files.h"
#include "tests/support/temporary_folder.h"

namespace elixir::fuzz {
namespace {

constexpr std::string_view kShardHeader =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[8,16]}})";
constexpr uint64_t kShardDataBytes = 16;

struct Files {
  Files() { folder.write("a.safetensors", file_of(kShardHeader, kShardDataBytes)); }
  const TemporaryFolder folder;
  const RewrittenFile index{folder.path("model.safetensors.index.json")};
  const RewrittenFile file{folder.path("b.safetensors")};
};

void check_model(const planner::StoredModel& model, uint64_t bytes_most) {
  std::set<std::string> names;
  unsigned __int128 numel = model.buffer_bytes;
  for (const planner::NamedShape& parameter : model.parameters) {
    ELIXIR_CHECK(names.insert(parameter.name).second, "{} twice", parameter.name);
    numel += parameter.numel();
  }
  ELIXIR_CHECK(!names.empty(), "no parameters");
  ELIXIR_CHECK(numel <= static_cast<unsigned __int128>(bytes_most) * 4, "more elements than bytes");
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  static const fuzz::Files files;
  fuzz::Input input(data, size);
  const fuzz::RewrittenFile& chosen = input.flag() ? files.index : files.file;
  chosen.write(input.rest());
  const Result<planner::StoredModel> model = planner::read_stored_model(chosen.path());
  if (!fuzz::accepted(model)) return 0;
  fuzz::check_model(*model, size + fuzz::kShardDataBytes);
  return 0;
}
