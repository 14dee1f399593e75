#include "client/tensors/known_regions.h"

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "client/tensors/operator_call.h"

namespace elixir {
namespace {

// Sequences of varying length make a kind each; more of them make room by forgetting all.
constexpr size_t kMostKinds = 1024;

std::atomic<bool>& early() {
  static std::atomic<bool> stops = [] {
    const char* const value = std::getenv("ELIXIR_STOP_EARLY");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return stops;
}

}  // namespace

uint32_t KnownRegion::products_to_store() const {
  return tails.size() == 1 && !observe ? tails.front().products_before : 0;
}

KnownRegions& KnownRegions::of_process() {
  static auto* const regions = new KnownRegions;  // backward's threads may outlive main()
  return *regions;
}

std::shared_ptr<const KnownRegion> KnownRegions::find(uint64_t kind) const {
  static const auto unknown = std::make_shared<const KnownRegion>();
  const MutexLock lock(mutex_);
  const auto found = regions_.find(kind);
  return found == regions_.end() ? unknown : found->second;
}

void KnownRegions::set(uint64_t kind, KnownRegion region) {
  const MutexLock lock(mutex_);
  if (regions_.size() >= kMostKinds) regions_.clear();
  regions_[kind] = std::make_shared<const KnownRegion>(std::move(region));
}

// Relaxed: it orders nothing.
bool stops_early() { return early().load(std::memory_order_relaxed); }
void set_stops_early(bool stops) { early().store(stops, std::memory_order_relaxed); }

uint64_t kind_of_region(size_t function_type, int depth, const std::vector<at::Tensor>& inputs) {
  CallHash hash;
  hash.add(function_type).add(static_cast<uint64_t>(depth));
  for (const at::Tensor& input : inputs) hash.add(input);
  return hash.value();
}

}  // namespace elixir
