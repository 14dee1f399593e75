#pragma once

// elixir.json, the last file of a checkpoint to be written. A folder that has a valid one is a
// whole checkpoint. It holds everything that the tensors' files cannot say.

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
// Enough for 64 TiB, at 30 bytes per piece, and the names of 300,000 parameters.
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
  std::vector<Piece> pieces = {};  // in order, the whole file

  bool operator==(const ManifestFile&) const = default;
};

// The hyperparameters of a group of parameters in its last step.
struct ManifestGroup {
  double lr = 0, weight_decay = 0;
  std::vector<double> hyper = {};  // as the rule's row in kUpdateRules names them

  bool operator==(const ManifestGroup&) const = default;
};

struct LossScaleState {
  double value = 1;
  uint32_t good_steps = 0;  // in a row, since the last change

  bool operator==(const LossScaleState&) const = default;
};

// Parameters that are missing in the folder: those that are not trained, or all of them
// (Manifest::states_alone).
struct LeftOut {
  uint64_t parameters = 0, bytes = 0;
  uint64_t hash = 0;  // left_out.h

  bool operator==(const LeftOut&) const = default;
};

// Whether training can continue from a checkpoint.
struct Health {
  // Values of trained parameters and of their states that are NaN or infinite. elixird counted them
  // while it wrote.
  uint64_t not_finite = 0;
  // Whether the last step's loss and gradient norm were finite, as the program said.
  bool finite_step = true;

  bool good() const { return not_finite == 0 && finite_step; }
  bool operator==(const Health&) const = default;
};

struct Manifest {
  uint64_t step = 0;     // steps since the run's first beginning, skipped ones included
  uint64_t updates = 0;  // steps that were not skipped: the usual count of a parameter
  ComputeType type = ComputeType::kFp32;
  UpdateRule rule = UpdateRule::kAdamW;
  bool optimizer_states = true;
  uint32_t ranks = 1;  // ranks that wrote it; each has a user/rank-R.bin
  std::vector<ManifestGroup> groups = {};
  LossScaleState loss_scale = {};
  // Adam's count by parameter, if it differs from `updates` (no gradient in some step).
  std::map<std::string, uint64_t> updates_of = {};
  std::map<std::string, uint32_t> group_of = {};  // only groups other than 0
  std::optional<LeftOut> left_out = {};           // empty: the folder has all parameters
  // true: the folder holds no model. left_out then describes all parameters, and the states
  // fit no other values. Older releases say of such a folder that it holds no tensors.
  bool states_alone = false;
  std::optional<Health> health = {};  // empty: an older release wrote it
  std::string program = {};           // any text that the training program keeps
  std::vector<ManifestFile> files = {};

  bool operator==(const Manifest&) const = default;
};

// {"manifest":{...},"xxh3":"..."} and a line end; the hash is of the inner object's bytes.
// REQUIRES: numbers are finite; text and names are UTF-8 (other bytes become U+FFFD).
std::string encode_manifest(const Manifest& manifest);

// Decodes hostile bytes. kBadInput: not this format or version, a wrong hash, a name outside the
// folder, a size that its pieces contradict, or a number out of range.
Result<Manifest> decode_manifest(std::string_view text);

// kBadInput: the manifest lists another size for the file.
Status check_size(const ManifestFile& listed, uint64_t bytes);

uint64_t xxh3_of(std::span<const std::byte> bytes);

// Whether a file in a checkpoint may have this name: one or two parts of [A-Za-z0-9._-], none of
// them "." or "..", at most 255 bytes each.
bool is_file_name(std::string_view name);

// Whether the format gives this name a meaning in a checkpoint's folder: the manifest, the index,
// files of tensors, and all of optimizer/.
bool is_own_file(std::string_view name);

}  // namespace elixir::checkpoints
