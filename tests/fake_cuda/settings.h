#pragma once

#include <cstdint>
#include <string>

namespace fake_cuda {

// With 9.0 torch asks for cuDNN, which is not here.
inline constexpr int kCapabilityMajor = 8, kCapabilityMinor = 0;

// The environment variables FAKE_CUDA_*, read once, when the first of them is needed. README.md
// says what each means.
struct Settings {
  int devices;
  uint64_t memory_bytes;   // of each device
  uint64_t context_bytes;  // of that, what a context takes

  int64_t call_ns, kernel_ns;  // virtual
  double link_bytes_per_ns;    // 0: copies take no virtual time
  double pageable_share;       // of it, for memory that is not page-locked
  int64_t delay_ns;            // random real delay before each work, up to this
  uint64_t seed;

  uint64_t pin_limit_bytes;

  int64_t fail_after;  // -1: never
  std::string fail_call;
  int fail_error;

  int race_exit;  // the process' exit code where there was one; 0: its own
  std::string report;
};

const Settings& settings();

// FAKE_CUDA_<name> as a number. Ends the process when it is none.
double number_setting(const char* name, double otherwise);

}  // namespace fake_cuda
