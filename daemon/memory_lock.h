#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace elixir::daemon {

// The system may swap out states, for example to make room for files that a data loader reads. They
// then come back page by page, each time an update needs them. So elixird locks states in memory
// where that is allowed.

// Raises this process's limit of locked memory as far as it may be raised.
void raise_memory_lock_limit();

// From now on each page of the range stays in memory from its filling until it is unmapped. False
// if RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=) has no room for the whole range.
bool lock_as_filled(void* address, uint64_t bytes);

// Finds how much of filled memory that is not locked lies in swap. It looks piece by piece, because
// a look takes about half a millisecond per GiB.
class SwapWatch {
 public:
  void add(std::span<const std::byte> filled) { filled_.push_back(filled); }
  // Looks at the next `bytes`. After the last ones it starts again at the first.
  void look(uint64_t bytes);
  // The result of the last complete look; 0 before the first. Empty where the system does not tell.
  std::optional<uint64_t> swapped_bytes() const { return swapped_bytes_; }

 private:
  std::vector<std::span<const std::byte>> filled_;
  size_t next_ = 0;      // index in filled_
  uint64_t offset_ = 0;  // in that range
  uint64_t counted_bytes_ = 0;
  std::vector<unsigned char> in_memory_;  // a byte per page
  std::optional<uint64_t> swapped_bytes_ = 0;
};

}  // namespace elixir::daemon
