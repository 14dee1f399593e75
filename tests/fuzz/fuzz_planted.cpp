// The negative control: reads behind its input when that begins with "ELX". A fuzzing run that does
// not find it finds nothing.

#include <cstdint>
#include <cstdlib>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> copy(data, data + size);
  if (size < 3 || copy[0] != 'E' || copy[1] != 'L' || copy[2] != 'X') return 0;
  volatile const uint8_t* const bytes = copy.data();
  return bytes[size] == 0 ? 0 : 0;
}
