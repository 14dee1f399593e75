#include "daemon/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace elixir::daemon {
namespace {

constexpr uint64_t kMostSpare = 64, kSpareShare = 8;
constexpr uint64_t kUnknownLimit = 1024;

}  // namespace

DescriptorLimit DescriptorLimit::raise() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return DescriptorLimit(kUnknownLimit);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  return DescriptorLimit(::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : before);
}

uint64_t DescriptorLimit::spare() const { return std::min(kMostSpare, limit_ / kSpareShare); }

uint64_t DescriptorLimit::most_ranks() const {
  const uint64_t taken = kIdleDescriptors + spare();
  return limit_ < taken ? 0 : (limit_ - taken) / kDescriptorsPerRank;
}

uint64_t DescriptorLimit::first_refused(uint64_t ranks_without_memory) const {
  const uint64_t kept = spare() / 2 + kMemfdsPerRank * ranks_without_memory;
  return limit_ - std::min(limit_, kept);
}

}  // namespace elixir::daemon
