#pragma once

// What a trainer tells elixird of a save or a load beside its message: a memfd with a JSON object
// and bytes behind it. elixird reads it with pread and takes it as hostile.

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

// Of one rank. What only rank 0 gives is empty on the others.
struct Details {
  // ---- rank 0's ----
  std::vector<std::vector<int64_t>> shapes = {};  // by parameter of the table
  std::vector<ExtraValues> extras = {};           // tensors in no chunk
  // step, optimizer_states, groups, loss_scale, group_of, program; what elixird knows it fills in.
  Manifest manifest = {};
  Keep keep = {};
  std::optional<uint64_t> shadow_bytes = {};  // none: elixird's choice
  std::vector<std::string> ignored = {};      // of a load: LoadChoice's
  // ---- every rank's ----
  std::vector<UserFile> files = {};
  // Of chunks placed on the GPU: Adam's count of their parameters, by number in the table.
  std::map<uint32_t, uint64_t> updates = {};
};

// kInvalidArgument: not as is_file_name() allows, or one of the checkpoint's own: elixir.json, the
// index, *.safetensors, optimizer/...
Status check_user_file_name(const std::string& name);

// A sealed memfd. kInvalidArgument: a file's name, or more than can be read. REQUIRES: extras
// have a dtype.
Result<UniqueFd> write_details(const Details& details);
// kProtocol for what is not so encoded, not sealed, of another length, or beyond a limit;
// kResourceExhausted: there is no memory for it; kInternal: the system did not read it.
Result<Details> read_details(int fd, uint64_t bytes);
Result<Details> decode_details(std::span<const std::byte> bytes);
std::vector<std::byte> encode_details(const Details& details);

}  // namespace elixir::checkpoints
