// A libelixir_cuda.so of another version, for cuda_library_test.
#include <cstdint>

extern "C" uint32_t elixir_cuda_library_version() { return 4242; }
