#pragma once

#include <cstdint>
#include <string>

namespace fake_cuda {

// The environment variables FAKE_CUDA_*, read once, when the first of them is needed. README.md
// says what each means.
struct Settings {
  int devices;
  uint64_t memory_bytes;   // of each device
  uint64_t context_bytes;  // of that, what a context takes
  int capability_major, capability_minor;

  int64_t call_ns, kernel_ns, gemm_ns;  // virtual
  double link_bytes_per_ns;             // 0: copies take no virtual time
  double pageable_share;                // of it, for memory that is not page-locked
  bool sleep;                           // streams sleep as long as their work takes virtually
  int64_t delay_ns;                     // random real delay before each work, up to this
  uint64_t seed;

  bool read_only_pinning;
  uint64_t pin_limit_bytes;

  int64_t fail_after;  // -1: never
  std::string fail_call;
  int fail_error;

  bool races;
  int race_exit;       // the process' exit code where there was one; 0: its own
  uint64_t drop_wait;  // 0: none
  bool kernel_names;
  std::string report;
};

const Settings& settings();

// FAKE_CUDA_<name> as a number. Ends the process when it is none.
double number_setting(const char* name, double otherwise);

}  // namespace fake_cuda
