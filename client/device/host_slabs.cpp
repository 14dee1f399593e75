#include "client/device/host_slabs.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"

namespace elixir {
namespace {

constexpr uint64_t kMostAtOnceBytes = 256ull << 20;  // unless more is missing

}  // namespace

std::vector<std::byte*> HostSlabs::take(size_t bytes) {
  ELIXIR_CHECK(bytes > 0, "slabs for no bytes");
  const size_t n = (bytes + slab_bytes_ - 1) / slab_bytes_;
  if (free_.size() < n && !grow(n - free_.size())) return {};
  std::vector<std::byte*> slabs;
  for (size_t i = 0; i < n; ++i) {
    slabs.push_back(free_.back());
    free_.pop_back();
  }
  return slabs;
}

void HostSlabs::give(const std::vector<std::byte*>& slabs) {
  free_.insert(free_.end(), slabs.rbegin(), slabs.rend());
  ELIXIR_CHECK(free_.size() <= n_slabs_, "{} of {} slabs are free", free_.size(), n_slabs_);
}

// Adds as many slabs as there are, so that it is rarely called.
bool HostSlabs::grow(size_t missing) {
  const uint64_t most = limit_bytes_ / slab_bytes_ - std::min(limit_bytes_ / slab_bytes_, n_slabs_);
  if (missing > most) {
    say_no_room(missing * slab_bytes_, "the limit is reached");
    return false;
  }
  const uint64_t wanted = std::min(n_slabs_, kMostAtOnceBytes / slab_bytes_);
  const uint64_t n = std::min(std::max<uint64_t>(missing, wanted), most);
  std::byte* memory = nullptr;
  try {
    memory = device_.allocate_host(n * slab_bytes_, "activations");
  } catch (const Error& failure) {
    say_no_room(n * slab_bytes_, failure.what());
    limit_bytes_ = held_bytes();
    return false;
  }
  for (uint64_t i = n; i-- > 0;) free_.push_back(memory + i * slab_bytes_);
  n_slabs_ += n;
  return true;
}

void HostSlabs::say_no_room(uint64_t bytes, const char* why) {
  if (std::exchange(said_, true)) return;
  log_warn(
      "activations_stay",
      "wanted=\"{}\" held=\"{}\" limit=\"{}\" why=\"{}\" effect=\"activations beyond that stay "
      "on the device\" remedy=\"a larger --activations host:BYTES, or more free host memory\"",
      format_bytes(bytes), format_bytes(held_bytes()), format_bytes(limit_bytes_), why);
}

}  // namespace elixir
