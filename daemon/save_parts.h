#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/file_plan.h"
#include "daemon/saving.h"
#include "shm/shape.h"

namespace elixir::daemon {

// A chunk's part of an array in a file. Each chunk of a parameter longer than a chunk has a part.
struct PlannedPart {
  uint32_t file = 0;
  checkpoints::StateKind kind = checkpoints::StateKind::kParam;
  uint64_t offset = 0, bytes = 0;  // in the file
  uint64_t first = 0, numel = 0;   // elements of the chunk
};

// The parts of each chunk, ascending by file and offset. The plan has the places of the arrays of
// `parameters`.
std::vector<std::vector<PlannedPart>> parts_by_chunk(
    const checkpoints::FilePlan& plan, std::span<const checkpoints::SavedParameter> parameters,
    const shm::Shape& shape);

// Copies the chunk that ranks have staged into their images (SavePart::image). The staging memory
// is not mapped, because a trainer can take its pages back. One chunk is staged at a time.
Status read_staged(std::span<SavePart> parts);

}  // namespace elixir::daemon
