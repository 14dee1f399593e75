#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/exchange/exchange.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir {

// The initial values of parameters.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  // Each thread calls it before its first draw().
  virtual void begin_thread() {}
  // Writes the values of one parameter, in FP32. Called once per parameter, from several threads at
  // a time.
  virtual void draw(uint32_t parameter, std::span<float> values) = 0;
};

// Puts the values of all parameters into the exchange's chunks, and zeros between them. It draws
// and loads them on `threads` threads of its own, and hands them out on the caller's thread. All
// ranks call it. Pass a null source if this rank's values do not count: the rank then only takes
// the values that it keeps.
//
// It holds the FP32 values of at most three chunks at a time, and of at most half of the chunks
// (but always of one). While it loads a parameter longer than a chunk, it also holds the values of
// that parameter. Rethrows the exception of a thread.
void load_chunks(Exchange& exchange, const shm::Shape& shape,
                 const std::vector<shm::ParameterPlace>& places, ValueSource* source,
                 uint32_t threads);

}  // namespace elixir
