#pragma once

// Where each tensor of a checkpoint that is to be written lies: names, headers and offsets, before
// a byte of it is there. Pure arithmetic.

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
  uint64_t offset = 0, numel = 0;  // elements of the chunk, or of it and those behind it
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
    std::string header;  // its first bytes
    uint64_t bytes = 0;
  };
  std::vector<File> files;
  // By chunk, ascending by file and offset. Those of one chunk, file and kind-width lie one behind
  // another, so that a chunk is a few runs of bytes. An array of several chunks is whole, and the
  // first one's.
  std::vector<std::vector<PlannedTensor>> chunks;
  struct Scalar {
    uint32_t parameter = 0, file = 0;
    uint64_t offset = 0;  // 4 bytes: Adam's count in FP32, as torch keeps it
  };
  std::vector<Scalar> steps;          // in the optimizer's files
  std::vector<PlannedTensor> extras;  // `parameter`: number of the extra tensor
  std::string index;                  // model.safetensors.index.json
  uint64_t bytes = 0;                 // of all files
};

struct FileChoice {
  ComputeType type = ComputeType::kFp32;
  bool optimizer_states = true;
  bool frozen = true;  // false: without parameters that are not trained
  // A chunk more at most, or a parameter longer than one: neither is cut.
  uint64_t max_file_bytes = 5'000'000'000;
};

// The product of the shape's dimensions is so many elements. False as well where it does not fit 63
// bits.
bool has_numel(std::span<const int64_t> shape, uint64_t numel);

// Every array begins at a multiple of its element's bytes in the file, as readers expect: the
// widest types come first in each file. Parameters in the order of chunk and offset. kBadInput: a
// shape whose product is not numel, a name twice, none, or too long.
Result<FilePlan> plan_files(std::span<const SavedParameter> parameters,
                            std::span<const ExtraTensor> extras, const FileChoice& choice);

}  // namespace elixir::checkpoints
