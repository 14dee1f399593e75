#pragma once

// One .safetensors file: the length of a header (u64, little endian), the header (JSON, padded with
// spaces), then the tensors' bytes without gaps. Headers are taken as hostile.
// Format: https://github.com/huggingface/safetensors, README, "Format".

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"

namespace elixir::checkpoints {

// The limits of a file. More is rejected before memory is taken for it.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;  // also the format's own limit
inline constexpr uint64_t kMaxIndexBytes = uint64_t{32} << 20;    // of model.safetensors.index.json
inline constexpr size_t kMaxTensors = 4'000'000;                  // in a file, and in all together
inline constexpr size_t kMaxDimensions = 16;
inline constexpr size_t kMaxFiles = 10'000;  // in one folder
// The name of a tensor: a parameter's name (1024), "state." and ".exp_avg_sq".
inline constexpr size_t kMaxNameBytes = 1056;

// A type of elements. `name` is the format's name for it ("BF16").
struct Dtype {
  std::string_view name;
  uint64_t bytes;
  bool floating;
};
const Dtype* find_dtype(std::string_view name);  // null: not known
const Dtype& dtype_of(ComputeType type);         // BF16, F16, F32

// A tensor as a header lists it.
struct TensorEntry {
  std::string name;
  const Dtype* dtype = nullptr;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, counted from the first tensor

  uint64_t numel() const { return (end - begin) / dtype->bytes; }
};

// Whether name and shape show that the tensor is no parameter. Published files hold such buffers
// beside parameters: GPT-2's causal masks and rotary frequencies.
bool is_known_buffer(const TensorEntry& tensor);

struct Header {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  uint64_t data_begin = 0;           // in the file; the tensors' bytes fill the rest
};

// Parses the JSON of one header, whose tensors lie in the `data_bytes` that follow it. kBadInput,
// with the tensor and the fault: not the format's JSON, an unknown dtype, a shape that contradicts
// the offsets, or a name used twice. Also bytes that overlap, lie outside, or belong to no tensor.
Result<std::vector<TensorEntry>> parse_header(std::string_view json, uint64_t data_bytes);

// Reads the header of an open file. kBadInput, too, if it is not an ordinary file.
Result<Header> read_header(int fd);

// Length and JSON, padded to a multiple of 64 bytes. REQUIRES: the tensors lie one behind another
// from 0 on; their names are UTF-8.
std::string encode_header(std::span<const TensorEntry> tensors);

inline constexpr const char* kIndexName = "model.safetensors.index.json";
// The contents of an index: tensors by the file that holds them. kBadInput: not such an index, a
// file's name with a folder in it, or beyond a limit above.
using WeightMap = std::map<std::string, std::set<std::string>>;
Result<WeightMap> parse_index(std::string_view json);

// Reads all of [offset, offset + bytes) of an open file. kBadInput: it cannot be read, or ends
// before.
Status read_bytes(int fd, uint64_t offset, std::span<std::byte> bytes);

}  // namespace elixir::checkpoints
