#pragma once

// What is written into a file in one go, and what is found out on the way: hashes, and how many
// values are not finite.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/finite.h"

struct XXH3_state_s;

namespace elixir::daemon {

// Values in memory. kNone: nobody counts those that are not finite.
struct Values {
  std::span<const std::byte> bytes;
  ValueFormat format = ValueFormat::kNone;
};

// Bytes that lie one behind another in a file, wherever they come from.
struct Run {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::vector<Values> parts = {};

  uint64_t bytes() const;
  void append(std::span<const std::byte> part, ValueFormat format = ValueFormat::kNone);
};

// The next `bytes` of what the parts hold, from part `*next` on, taken off them. It cuts no value
// if `bytes` is a multiple of the widest: a file has the widest types first.
std::vector<Values> take_front(std::vector<Values>& parts, size_t* next, uint64_t bytes);

// Adds the bytes to the hash. Returns how many values are not finite.
uint64_t hash_and_count(const Values& values, XXH3_state_s* hash);

iovec vector_of(const Values& values);  // for pwritev(), which only reads

}  // namespace elixir::daemon
