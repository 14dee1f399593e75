#pragma once

#include <cstdint>
#include <string>

namespace fake_cuda {

// With 9.0, torch needs cuDNN, which is missing here.
inline constexpr int kCapabilityMajor = 8, kCapabilityMinor = 0;

// The environment variables FAKE_CUDA_*. They are read once, when the first of them is needed.
// README.md explains each.
struct Settings {
  int devices;
  uint64_t memory_bytes;   // per device
  uint64_t context_bytes;  // part of it that a context takes

  int64_t call_ns, kernel_ns;  // virtual
  double link_bytes_per_ns;    // 0: copies take no virtual time
  double pageable_share;       // share of the link for memory that is not page-locked
  int64_t delay_ns;            // random real delay before each work, up to this
  uint64_t seed;

  uint64_t pin_limit_bytes;

  int64_t fail_after;  // -1: never
  std::string fail_call;
  int fail_error;

  int race_exit;  // the process's exit code if it had a race; 0: its own
  std::string report;
};

const Settings& settings();

// FAKE_CUDA_<name> as a number. Ends the process if it is not a number.
double number_setting(const char* name, double otherwise);

}  // namespace fake_cuda
