// The manifest of a checkpoint. The first byte chooses: the file as it is, or what it says within a
// hash that fits.

#include <set>
#include <string>

#include "checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/stored_folder_files.h"

namespace elixir::fuzz {
namespace {

void check_manifest(const checkpoints::Manifest& manifest) {
  std::set<std::string> names;
  for (const checkpoints::ManifestFile& file : manifest.files) {
    ELIXIR_CHECK(checkpoints::is_file_name(file.name), "{}", file.name);
    ELIXIR_CHECK(names.insert(file.name).second, "{} twice", file.name);
    uint64_t bytes = 0;
    for (const checkpoints::Piece& piece : file.pieces) {
      ELIXIR_CHECK(piece.bytes > 0 && piece.bytes <= checkpoints::kMaxPieceBytes, "a piece");
      bytes += piece.bytes;
    }
    ELIXIR_CHECK(bytes == file.bytes, "{}", file.name);
  }
  ELIXIR_CHECK(names.size() <= checkpoints::kMaxFiles, "files");
  ELIXIR_CHECK(manifest.program.size() <= checkpoints::kMaxProgramBytes, "text");
  for (const checkpoints::ManifestGroup& group : manifest.groups) {
    ELIXIR_CHECK(group.hyper.size() == traits_of(manifest.rule).n_hyper, "hyperparameters");
  }
  for (const auto& [name, group] : manifest.group_of) {
    ELIXIR_CHECK(group == 0 || group < manifest.groups.size(), "the group of {}", name);
  }
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  fuzz::Input input(data, size);
  const bool seal = input.flag();
  const std::string text = seal ? fuzz::sealed(input.rest_text()) : std::string(input.rest_text());
  const Result<checkpoints::Manifest> manifest = checkpoints::decode_manifest(text);
  if (!fuzz::accepted(manifest)) return 0;
  fuzz::check_manifest(*manifest);
  const Result<checkpoints::Manifest> again =
      checkpoints::decode_manifest(checkpoints::encode_manifest(*manifest));
  ELIXIR_CHECK(again.ok(), "{}", again.status().message());
  ELIXIR_CHECK(*again == *manifest, "it reads otherwise than it was written");
  return 0;
}
