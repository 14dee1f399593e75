#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace elixir::probe {

// A loop that reads and writes every word once, in place: the most an in-place update can get of
// a machine's memory. Which loop is fastest depends on the processor, so all are tried.
struct InplaceLoop {
  const char* name;
  // Flips the bits of `mask`, 0 to keep what is there. REQUIRES: numel a multiple of 4096; not
  // checked, since these loops are what is timed.
  void (*run)(uint64_t* words, size_t numel, uint64_t mask);
};

// Those that this processor can run.
std::vector<InplaceLoop> inplace_loops();

}  // namespace elixir::probe
