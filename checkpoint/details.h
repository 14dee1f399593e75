#pragma once

// The details of a save or a load, which a trainer sends elixird beside its message. They are a
// memfd with a JSON object and bytes behind it. elixird reads it with pread and treats it as
// hostile.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "checkpoint/file_plan.h"
#include "checkpoint/listing.h"
#include "checkpoint/manifest.h"

namespace elixir::checkpoints {

inline constexpr uint64_t kMaxDetailsBytes = uint64_t{4} << 30;  // JSON, buffers and user's files

struct UserFile {
  std::string name;  // as check_user_file_name() allows
  std::vector<std::byte> bytes;
};

struct ExtraValues : ExtraTensor {
  std::vector<std::byte> bytes;
};

// The details that one rank sends. Fields that only rank 0 gives are empty on the others.
struct Details {
  // ---- rank 0's ----
  std::vector<std::vector<int64_t>> shapes = {};  // one per parameter of the table
  std::vector<ExtraValues> extras = {};           // tensors in no chunk
  // Set here: step, optimizer_states, groups, loss_scale, group_of, program. elixird sets the rest.
  Manifest manifest = {};
  Keep keep = {};
  std::optional<uint64_t> shadow_bytes = {};  // empty: elixird chooses
  std::vector<std::string> ignored = {};      // for a load: see LoadChoice
  // For a load of states alone: the sum of left_out_hash() of parameters in chunks on the GPU.
  uint64_t device_hash = 0;
  // ---- every rank's ----
  std::vector<UserFile> files = {};
  // For parameters of chunks on the GPU: Adam's count of updates, by number in the table.
  std::map<uint32_t, uint64_t> updates = {};
};

// kInvalidArgument if is_file_name() does not allow the name, or if the checkpoint uses the name
// itself: elixir.json, the index, *.safetensors, optimizer/...
Status check_user_file_name(const std::string& name);

// Returns a sealed memfd. kInvalidArgument: a bad file name, or more bytes than can be read.
// REQUIRES: extras have a dtype.
Result<UniqueFd> write_details(const Details& details);
// kProtocol if the memfd is encoded in another way, not sealed, of another length, or beyond a
// limit. kResourceExhausted: there is no memory for it. kInternal: the system did not read it.
Result<Details> read_details(int fd, uint64_t bytes);
Result<Details> decode_details(std::span<const std::byte> bytes);
std::vector<std::byte> encode_details(const Details& details);

}  // namespace elixir::checkpoints
