#include "tests/fake_nccl/settings.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace fake_nccl {
namespace {

double number(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end != text && *end == '\0') return value;
  std::fprintf(stderr, "fake NCCL: %s=%s is no number\n", name, text);
  std::exit(2);
}

struct Settings {
  int error_rank = static_cast<int>(number("FAKE_NCCL_ERROR_RANK", -1));
  uint64_t error_at = static_cast<uint64_t>(number("FAKE_NCCL_ERROR_AT", 1));
  int error_result = static_cast<int>(number("FAKE_NCCL_ERROR_RESULT", ncclSystemError));
  bool error_at_call = number("FAKE_NCCL_ERROR_AT_CALL", 0) != 0;
  bool tells_peers = number("FAKE_NCCL_TELLS_PEERS", 0) != 0;
  double gb_s = number("FAKE_NCCL_GB_S", 0);
  bool mismatches_hang = number("FAKE_NCCL_MISMATCHES_HANG", 0) != 0;
};

const Settings& settings() {
  static const Settings read;
  return read;
}

}  // namespace

Injected inject(int rank) {
  static std::atomic<uint64_t> made{0};
  const Settings& asked = settings();
  if (++made != asked.error_at || rank != asked.error_rank) return {};
  return {true, static_cast<ncclResult_t>(asked.error_result), asked.error_at_call};
}

bool tells_peers() { return settings().tells_peers; }

int64_t duration_ns(double bytes) {
  return settings().gb_s > 0 ? static_cast<int64_t>(bytes / settings().gb_s) : 0;
}

bool mismatches_hang() { return settings().mismatches_hang; }

}  // namespace fake_nccl
