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
  // By each thread, before its first draw().
  virtual void begin_thread() {}
  // Those of one parameter, in FP32. Any thread, each parameter once, several at a time.
  virtual void draw(uint32_t parameter, std::span<float> values) = 0;
};

// Puts the values of all parameters into the exchange's chunks, zeros between them: drawn and
// loaded on `threads` threads of its own, handed out by the caller's. All ranks; null: this rank's
// values do not count, it only takes what it keeps. At most three chunks' FP32 values are held at a
// time, never those of more than half of the chunks, but of one; those of a parameter longer than a
// chunk beside them, while its chunks are loaded. Throws what a thread has thrown.
void load_chunks(Exchange& exchange, const shm::Shape& shape,
                 const std::vector<shm::ParameterPlace>& places, ValueSource* source,
                 uint32_t threads);

}  // namespace elixir
