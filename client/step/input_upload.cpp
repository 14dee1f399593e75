#include "client/step/input_upload.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace elixir {

// A piece that is large enough and was read: the one taken the longest ago, else a new one, else,
// where there are as many as there may be, the first that is large enough, when it has been read.
const InputUpload::Piece& InputUpload::take(size_t bytes) {
  const Piece* oldest = nullptr;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const size_t at = (next_ + i) % pieces_.size();
    const Piece& piece = pieces_[at];
    if (piece.bytes < bytes) continue;
    if (oldest == nullptr) oldest = &piece;
    // Pieces are read in the order in which they were taken: later ones are not done either.
    if (!device_.done(piece.read)) break;
    next_ = (at + 1) % pieces_.size();
    return piece;
  }
  const size_t new_bytes = std::bit_ceil(std::max(bytes, kLeastPieceBytes));
  if (oldest == nullptr || bytes_ + new_bytes <= kMostBytes) {
    pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(next_),
                   {device_.allocate_host(new_bytes, "inputs"), new_bytes, device_.create_event()});
    bytes_ += new_bytes;
    return pieces_[next_++];
  }
  device_.synchronize(oldest->read);
  next_ = (static_cast<size_t>(oldest - pieces_.data()) + 1) % pieces_.size();
  return *oldest;
}

void InputUpload::upload(std::byte* device, const void* values, size_t bytes) {
  if (bytes == 0) return;
  const Piece& piece = take(bytes);
  std::memcpy(piece.memory, values, bytes);
  device_.upload(Stream::kCompute, device, piece.memory, bytes);
  device_.record(piece.read, Stream::kCompute);
}

}  // namespace elixir
