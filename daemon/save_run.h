#pragma once

// Bytes that are written into a file in one go, their hash, and the number of values that are not
// finite.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/finite.h"

struct XXH3_state_s;

namespace elixir::daemon {

// Values in memory. kNone: those that are not finite are not counted.
struct Values {
  std::span<const std::byte> bytes;
  ValueFormat format = ValueFormat::kNone;
};

// Bytes that lie one behind another in a file. In memory they may lie anywhere.
struct Run {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::vector<Values> parts = {};

  uint64_t bytes() const;
  void append(std::span<const std::byte> part, ValueFormat format = ValueFormat::kNone);
};

// Takes the next `bytes` off the parts, from part `*next` on; fewer if they would be more than
// IOV_MAX pieces. It cuts no value if `bytes` is a multiple of the widest value: a file has the
// widest types first.
std::vector<Values> take_front(std::vector<Values>& parts, size_t* next, uint64_t bytes);

// Adds the bytes to the hash. Returns how many values are not finite.
uint64_t hash_and_count(const Values& values, XXH3_state_s* hash);

iovec vector_of(const Values& values);  // for pwritev(), which only reads

}  // namespace elixir::daemon
