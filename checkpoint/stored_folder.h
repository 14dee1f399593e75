#pragma once

// A folder of tensors, opened for reading: a checkpoint of Elixir's, or a plain Hugging Face model
// (model.safetensors, or shards with model.safetensors.index.json). Its contents are treated as
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
  std::vector<Piece> pieces;  // from the manifest; empty without one
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
  // A checkpoint without the model (Manifest::states_alone).
  bool holds_states_alone() const { return manifest && manifest->states_alone; }
};

// Whether the folder has something with the manifest's name that is not a folder, even a damaged
// one. Then `folder` is, or was, a checkpoint, and not a folder of checkpoints. `at`: an open
// folder, at which the path begins.
bool has_manifest(int at, const std::string& folder = ".");

// Reads the manifest of an open folder; empty if it has none. kBadInput begins with the manifest's
// name.
Result<std::optional<Manifest>> read_manifest(int folder);

// Opens a folder. `folder`: an open folder, whose files are opened relative to it. `path` names it
// in messages. Symbolic links are followed only in a snapshot of the hub's cache (hub_cache.h).
// kBadInput: the file and its fault, or the folder's name is another step's.
//
// With a manifest, its list of files decides. They must have the listed sizes. Tensors are those of
// the listed model*.safetensors and optimizer/*.safetensors, and other files of the folder do not
// count. Without a manifest the index decides; without an index, model.safetensors is all.
Result<StoredFolder> open_stored_folder(int folder, const std::string& path);
Result<StoredFolder> open_stored_folder(const std::string& path);

// kBadInput if the folder holds states alone, for programs that need a model.
Status check_has_model(const StoredFolder& folder);

// Opens a file of the folder for reading, by a name that is_file_name() allows. kBadInput: it is
// missing, no ordinary file, or a symbolic link that is not followed.
Result<StoredFile> open_stored_file(const StoredFolder& folder, const std::string& name);

inline constexpr uint64_t kMaxSmallFileBytes = uint64_t{256} << 20;

// Reads a small file of the folder, by a name that is_file_name() allows. kBadInput if it is
// missing, longer than `most`, or in the manifest and not what was written.
Result<std::string> read_stored_file(const StoredFolder& folder, const std::string& name,
                                     uint64_t most = kMaxSmallFileBytes);

}  // namespace elixir::checkpoints
