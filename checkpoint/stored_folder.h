#pragma once

// A folder of tensors, opened for reading: a checkpoint of Elixir's, or a plain Hugging Face model
// (model.safetensors, or shards with model.safetensors.index.json). What it holds is taken as
// hostile. No tensor is read here.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace elixir::checkpoints {

struct StoredTensor : TensorEntry {
  uint32_t file = 0;    // number in StoredFolder::files
  uint64_t offset = 0;  // in that file
};

struct StoredFile {
  std::string name;
  UniqueFd fd;
  uint64_t bytes = 0;
  uint64_t data_begin = 0;
  std::vector<Piece> pieces;  // the manifest's; empty where there is none
};

struct StoredFolder {
  std::string path;                     // for messages
  UniqueFd folder;                      // open
  std::optional<Manifest> manifest;     // none: a plain Hugging Face model
  std::vector<StoredFile> files;        // those with tensors
  std::vector<StoredTensor> model;      // in the order of their bytes, file by file
  std::vector<StoredTensor> optimizer;  // likewise; empty without a manifest

  // "FOLDER/FILE: tensor 'NAME'".
  std::string place_of(const StoredTensor& tensor) const;
};

// Whether there is something of the manifest's name that is no folder, be it damaged: `folder` is,
// or was, a checkpoint, and not a folder of them. `at`: where its path begins.
bool has_manifest(int at, const std::string& folder = ".");

// Of an open folder; none: it has none. kBadInput begins with the manifest's name.
Result<std::optional<Manifest>> read_manifest(int folder);

// `folder`: an open folder, whose files are opened relative to it. Symbolic links are followed only
// in a snapshot of the hub's cache (hub_cache.h); `path` names it in messages. kBadInput: the file
// and what is wrong with it, or that its name is another step's. With a manifest its list of files
// rules: their sizes must be those that it says, tensors are those of model*.safetensors and
// optimizer/*.safetensors in it, and other files of the folder do not count. Without one the index
// rules, or model.safetensors is all.
Result<StoredFolder> open_stored_folder(int folder, const std::string& path);
Result<StoredFolder> open_stored_folder(const std::string& path);

// A file of the folder, by a name that is_file_name() allows, open for reading. kBadInput: it is
// missing, no ordinary file, or a symbolic link that is not followed.
Result<StoredFile> open_stored_file(const StoredFolder& folder, const std::string& name);

inline constexpr uint64_t kMaxSmallFileBytes = uint64_t{256} << 20;

// A small file of the folder, by a name that is_file_name() allows: kBadInput where it is missing,
// longer than `most` or, where the manifest has it, not what was written.
Result<std::string> read_stored_file(const StoredFolder& folder, const std::string& name,
                                     uint64_t most = kMaxSmallFileBytes);

}  // namespace elixir::checkpoints
