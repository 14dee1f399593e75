#include "daemon/save_parts.h"

#include <unistd.h>

#include <cerrno>

#include "shm/parameter_table.h"

namespace elixir::daemon {

std::vector<std::vector<PlannedPart>> parts_by_chunk(
    const checkpoints::FilePlan& plan, std::span<const checkpoints::SavedParameter> parameters,
    const shm::Shape& shape) {
  std::vector<std::vector<PlannedPart>> chunks(shape.total_chunks());
  for (const std::vector<checkpoints::PlannedTensor>& tensors : plan.chunks) {
    for (const checkpoints::PlannedTensor& tensor : tensors) {
      const checkpoints::SavedParameter& parameter = parameters[tensor.parameter];
      const shm::ParameterPlace place{{}, parameter.chunk, parameter.offset, parameter.numel};
      const uint64_t element = tensor.bytes / parameter.numel;
      const shm::ChunkRun run = shm::chunks_of(place, shape);
      for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
        const shm::ParameterPart part = shm::part_in(place, shape, chunk);
        chunks[chunk].push_back({.file = tensor.file,
                                 .kind = tensor.kind,
                                 .offset = tensor.offset + part.first * element,
                                 .bytes = part.numel * element,
                                 .first = part.offset,
                                 .numel = part.numel});
      }
    }
  }
  return chunks;
}

Status read_staged(std::span<SavePart> parts) {
  for (SavePart& part : parts) {
    std::span<std::byte> left(part.image);
    while (!left.empty()) {
      const ssize_t got = ::pread(part.staging.get(), left.data(), left.size(),
                                  static_cast<off_t>(part.image.size() - left.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno_status(Code::kInternal, "reading a rank's staging memory");
      if (got == 0) return error(Code::kProtocol, "a rank's staging memory ends too early");
      left = left.subspan(static_cast<size_t>(got));
    }
  }
  return Status();
}

}  // namespace elixir::daemon
