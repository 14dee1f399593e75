#include "tests/support/allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local uint64_t made = 0;

}  // namespace

// All that go with the operators delete below: sanitizers check that they are pairs.
void* operator new(std::size_t bytes) {
  ++made;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++made;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace elixir {

uint64_t allocations() { return made; }

}  // namespace elixir
