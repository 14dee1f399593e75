#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace elixir::daemon {

// States that the system swaps out, to make room for the files that a data loader reads, say, come
// back page by page, each time an update needs them. So they are locked where that is allowed.

// Raises this process's limit of locked memory as far as it may be raised.
void raise_memory_lock_limit();

// From here on a page of these that is filled stays in memory until it is unmapped. False where the
// limit does not allow it: RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=) has no room for all of it.
bool lock_as_filled(void* address, uint64_t bytes);

// How much of filled memory that is not locked lies in swap. Looked at piece by piece, since it
// takes about half a millisecond a GiB.
class SwapWatch {
 public:
  void add(std::span<const std::byte> filled) { filled_.push_back(filled); }
  // Goes on with the next `bytes`; at the end of all from the beginning.
  void look(uint64_t bytes);
  // As it was when all was looked at last; 0 before. None where the system does not tell.
  std::optional<uint64_t> swapped_bytes() const { return swapped_bytes_; }

 private:
  std::vector<std::span<const std::byte>> filled_;
  size_t next_ = 0;      // of filled_
  uint64_t offset_ = 0;  // in it
  uint64_t counted_bytes_ = 0;
  std::vector<unsigned char> in_memory_;  // a byte a page
  std::optional<uint64_t> swapped_bytes_ = 0;
};

}  // namespace elixir::daemon
