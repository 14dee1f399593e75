#pragma once

// The layout of a checkpoint before any byte is written: names and headers of files, and the offset
// of each tensor. Pure arithmetic.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/safetensors.h"

namespace elixir::checkpoints {

struct SavedParameter {
  std::string name;
  std::vector<int64_t> shape;
  uint32_t chunk = 0;
  uint64_t offset = 0, numel = 0;  // in elements; a long parameter continues in the next chunks
  bool trained = true;
};

// A tensor that lies in no chunk: a buffer, a parameter that is left out.
struct ExtraTensor {
  std::string name;
  const Dtype* dtype = nullptr;
  std::vector<int64_t> shape;
};

// An array of a parameter in a file.
struct PlannedTensor {
  uint32_t parameter = 0;
  StateKind kind = StateKind::kParam;
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0;
};

struct FilePlan {
  struct File {
    std::string name;    // "model-00001-of-00002.safetensors", "optimizer/optimizer-..."
    std::string header;  // the file's first bytes
    uint64_t bytes = 0;
  };
  std::vector<File> files;
  // One list per chunk, ascending by file and offset. Arrays of one chunk, file and element width
  // lie one behind another, so a chunk is a few runs of bytes. An array of several chunks is whole
  // and belongs to the first one.
  std::vector<std::vector<PlannedTensor>> chunks;
  struct Scalar {
    uint32_t parameter = 0, file = 0;
    uint64_t offset = 0;  // 4 bytes: Adam's count in FP32, as torch keeps it
  };
  std::vector<Scalar> steps;          // in the optimizer's files
  std::vector<PlannedTensor> extras;  // `parameter` is the extra tensor's number
  std::string index;                  // model.safetensors.index.json; "": there is no model
  uint64_t bytes = 0;                 // of all files
};

struct FileChoice {
  ComputeType type = ComputeType::kFp32;
  bool optimizer_states = true;
  bool frozen = true;  // false: leave out parameters that are not trained
  bool model = true;   // false: leave out all parameters and extras; there is no index
  // A file may exceed this by one chunk, or by a parameter that is longer: neither is cut.
  uint64_t max_file_bytes = 5'000'000'000;
};

// Whether the product of the shape's dimensions is `numel`. False if it does not fit into 63 bits.
bool has_numel(std::span<const int64_t> shape, uint64_t numel);

// Plans parameters in the order of chunk and offset. Every array begins at a multiple of its
// element's bytes in the file, as readers expect: the widest types come first in each file.
// kBadInput: a shape whose product is not numel, a name that is used twice, empty or too long,
// nothing to write, or more than a limit of safetensors.h.
Result<FilePlan> plan_files(std::span<const SavedParameter> parameters,
                            std::span<const ExtraTensor> extras, const FileChoice& choice);

}  // namespace elixir::checkpoints
