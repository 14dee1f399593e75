#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tuple>

namespace fake_cuda {

struct CountAndBytes {
  uint64_t count = 0, bytes = 0;
};

// The counters of the process, guarded by the runtime's mutex. Streams and devices have their own.
struct Counters {
  std::map<std::string, uint64_t> calls;  // by the function's name
  // By direction, "pinned" or "pageable", size class, stream.
  std::map<std::tuple<std::string, std::string, std::string, int>, CountAndBytes> copies;
  std::map<std::pair<std::string, int>, uint64_t> host_waits;  // by call and stream, -1: a device
  std::map<std::string, uint64_t> counts;                      // from other fakes and tests
  uint64_t launches = 0;                                       // kernels of any kind, and gemms
  // Copies across registrations, or in a direction that contradicts the addresses.
  uint64_t bad_copies = 0;
  CountAndBytes registered, refused, private_files;

  void count_copy(const char* direction, bool pinned, size_t bytes, int stream);
};

// "<4K", "<64K", "<1M", "<16M", "<256M", ">=256M".
const char* size_class(size_t bytes);

// Writes the report, if one is asked for and CUDA was used. REQUIRES: the runtime's mutex.
void write_report();

}  // namespace fake_cuda
