#include "tests/fake_cuda/settings.h"

#include <cstdio>
#include <cstdlib>

namespace fake_cuda {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kMib = 1024.0 * 1024;
constexpr int kMostDevices = 16;

const char* text_setting(const char* name) {
  return std::getenv((std::string("FAKE_CUDA_") + name).c_str());
}

std::string text_setting(const char* name, const char* otherwise) {
  const char* text = text_setting(name);
  return text == nullptr ? otherwise : text;
}

int64_t ns_setting(const char* name, double otherwise_us) {
  return static_cast<int64_t>(number_setting(name, otherwise_us) * 1e3);
}

Settings read_settings() {
  Settings read;
  read.devices = static_cast<int>(number_setting("DEVICES", 1));
  if (read.devices < 0 || read.devices > kMostDevices) {
    std::fprintf(stderr, "fake CUDA: FAKE_CUDA_DEVICES is %d, 0 to %d are possible\n", read.devices,
                 kMostDevices);
    std::_Exit(2);
  }
  read.memory_bytes = static_cast<uint64_t>(number_setting("MEMORY_GIB", 8) * kGib);
  read.context_bytes = static_cast<uint64_t>(number_setting("CONTEXT_MIB", 512) * kMib);
  read.call_ns = ns_setting("CALL_US", 1);
  read.kernel_ns = ns_setting("KERNEL_US", 0);
  read.link_bytes_per_ns = number_setting("LINK_GB_S", 0);
  read.pageable_share = number_setting("PAGEABLE_SHARE", 0.2);
  read.delay_ns = ns_setting("DELAY_US", 0);
  read.seed = static_cast<uint64_t>(number_setting("SEED", 1));
  read.pin_limit_bytes = static_cast<uint64_t>(number_setting("PIN_LIMIT_MIB", 1 << 30) * kMib);
  read.fail_after = static_cast<int64_t>(number_setting("FAIL_AFTER", -1));
  read.fail_call = text_setting("FAIL_CALL", "");
  read.fail_error = static_cast<int>(number_setting("FAIL_ERROR", 700));
  read.race_exit = static_cast<int>(number_setting("RACE_EXIT", 0));
  read.report = text_setting("REPORT", "");
  return read;
}

}  // namespace

double number_setting(const char* name, double otherwise) {
  const char* text = text_setting(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0') {
    std::fprintf(stderr, "fake CUDA: FAKE_CUDA_%s=%s is no number\n", name, text);
    std::_Exit(2);
  }
  return value;
}

const Settings& settings() {
  static const Settings* read = new Settings(read_settings());
  return *read;
}

}  // namespace fake_cuda
