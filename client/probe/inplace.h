#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace elixir::probe {

// A loop that reads and writes every word once, in place: the most that an in-place update can get
// from a machine's memory. The fastest loop depends on the processor, so all are tried.
struct InplaceLoop {
  const char* name;
  // Flips the bits of `mask` in each word; with 0 all bits stay. REQUIRES: numel is a multiple of
  // 4096. This is not checked, because these loops are timed.
  void (*run)(uint64_t* words, size_t numel, uint64_t mask);
};

// The loops that this processor can run.
std::vector<InplaceLoop> inplace_loops();

}  // namespace elixir::probe
