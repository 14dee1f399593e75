#pragma once

// elixir.json, the last file of a checkpoint to be written: a folder that has a valid one is a
// whole checkpoint. It says what the tensors' files cannot.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "base/update_rule.h"

namespace elixir::checkpoints {

inline constexpr const char* kManifestName = "elixir.json";
// 30 bytes a piece: 64 TiB, beside the names of 300,000 parameters.
inline constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint64_t kMaxPieceBytes = uint64_t{64} << 20;
inline constexpr size_t kMaxProgramBytes = 64 << 10;

// Bytes of a file that are hashed together: XXH3, 64 bits, seed 0.
struct Piece {
  uint64_t bytes = 0;  // 1 to kMaxPieceBytes
  uint64_t xxh3 = 0;

  bool operator==(const Piece&) const = default;
};

struct ManifestFile {
  std::string name;  // within the folder; one folder deep at most ("optimizer/...", "user/...")
  uint64_t bytes = 0;
  std::vector<Piece> pieces = {};  // one behind another, all of the file

  bool operator==(const ManifestFile&) const = default;
};

// A group of parameters as its last step was made.
struct ManifestGroup {
  double lr = 0, weight_decay = 0;
  std::vector<double> hyper = {};  // as the rule's row in kUpdateRules names them

  bool operator==(const ManifestGroup&) const = default;
};

struct LossScaleState {
  double value = 1;
  uint32_t good_steps = 0;  // in a row, since it changed last

  bool operator==(const LossScaleState&) const = default;
};

// Parameters that are not trained and that the folder lacks.
struct LeftOut {
  uint64_t parameters = 0, bytes = 0;
  uint64_t hash = 0;  // left_out.h

  bool operator==(const LeftOut&) const = default;
};

struct Manifest {
  uint64_t step = 0;     // steps since the run's first beginning, skipped ones included
  uint64_t updates = 0;  // of them those that were not skipped: a parameter's count as a rule
  ComputeType type = ComputeType::kFp32;
  UpdateRule rule = UpdateRule::kAdamW;
  bool optimizer_states = true;
  uint32_t ranks = 1;  // that wrote it; user/rank-R.bin is theirs
  std::vector<ManifestGroup> groups = {};
  LossScaleState loss_scale = {};
  // By parameter: Adam's count, where it differs from `updates` (it had no gradient in some step).
  std::map<std::string, uint64_t> updates_of = {};
  std::map<std::string, uint32_t> group_of = {};  // where it is not 0
  std::optional<LeftOut> left_out = {};           // none: the folder has all parameters
  std::string program = {};  // what the program that trains keeps for itself: any text
  std::vector<ManifestFile> files = {};

  bool operator==(const Manifest&) const = default;
};

// {"manifest":{...},"xxh3":"..."} and a line's end: the hash is that of the inner object's bytes.
// REQUIRES: numbers are finite; text and names are UTF-8 (what is not becomes U+FFFD).
std::string encode_manifest(const Manifest& manifest);

// Decodes hostile bytes. kBadInput: not this format, another version of it, a hash that does not
// fit, a name that leaves the folder, a size that its pieces contradict, a number out of range.
Result<Manifest> decode_manifest(std::string_view text);

// kBadInput: a file of so many bytes is not the one that the manifest lists.
Status check_size(const ManifestFile& listed, uint64_t bytes);

uint64_t xxh3_of(std::span<const std::byte> bytes);

// A name that a file of a folder may have: one or two parts of [A-Za-z0-9._-], none of them "." or
// "..", 255 bytes each at most.
bool is_file_name(std::string_view name);

// A name that the format gives a meaning in a checkpoint's folder: the manifest, the index, files
// of tensors, and all of optimizer/.
bool is_own_file(std::string_view name);

}  // namespace elixir::checkpoints
