// Shape: 48 foreign bytes of an AttachRequest. What check_shape() lets through never overflows.

#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/shape_promises.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  elixir::fuzz::Input input(data, size);
  const auto shape = input.take<elixir::shm::Shape>();
  if (elixir::shm::check_shape(shape).ok()) elixir::fuzz::check_shape_promises(shape);
  return 0;
}
