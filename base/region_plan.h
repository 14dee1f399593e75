#pragma once

#include <array>
#include <cstdint>

namespace elixir {

inline constexpr uint32_t kMostRegions = 1 << 20;  // in a pass

// A checkpointed region keeps between its two runs:
// - kNothing: its inputs. Backward computes the rest again.
// - kProducts: also the results of products and attention that backward would compute again
// - kAll: everything that backward reads. It runs once, as without checkpoint().
enum class Keep : uint8_t { kNothing, kProducts, kAll };
inline constexpr std::array kKeeps = {Keep::kNothing, Keep::kProducts, Keep::kAll};

// Activations go over the link in pieces of so many bytes, so that other copies wait for one piece
// at most.
inline constexpr uint64_t kActivationPieceBytes = 32ull << 20;
// Host memory for a region's activations comes in slabs of so many bytes.
inline constexpr uint64_t kActivationSlabBytes = 2ull << 20;

// One region's part of a plan.
struct RegionChoice {
  Keep keep = Keep::kNothing;
  bool sends_products = false, sends_boundary = false;
  bool last_sender = false;  // the last one of its pass, which sends nothing

  constexpr bool sends() const { return sends_products || sends_boundary; }
};

// The regions of a pass keep this much. The last ones in forward are the first ones in backward, so
// what they keep lies in memory for the shortest time: they keep the most. Regions in regions keep
// nothing.
//
// Some regions send tensors to host memory, until backward comes near. These regions are spread
// evenly, so that each copy has the same time. The last of them sends nothing: its tensors stay on
// the device, because backward comes back to it before a copy would gain anything.
struct RegionPlan {
  uint32_t regions = 0;  // in a pass; regions beyond that keep nothing
  uint32_t keep_all = 0;
  uint32_t keep_products = 0;  // on the device
  // Products are also kept, and sent, by so many of the regions before those.
  uint32_t host_products = 0;
  // So many send their input, the boundary between two regions. Regions that keep everything send
  // none.
  uint32_t host_boundaries = 0;

  constexpr Keep keep(uint32_t region) const {
    if (region >= regions) return Keep::kNothing;
    const uint32_t behind = regions - 1 - region;
    if (behind < keep_all) return Keep::kAll;
    if (behind - keep_all < keep_products) return Keep::kProducts;
    return sends_products(region) ? Keep::kProducts : Keep::kNothing;
  }
  constexpr RegionChoice choice(uint32_t region) const {
    RegionChoice choice = {keep(region), sends_products(region), sends_boundary(region)};
    choice.last_sender = choice.sends();
    for (uint32_t later = region + 1; later < regions && choice.last_sender; ++later) {
      choice.last_sender = !sends(later);
    }
    return choice;
  }
  constexpr bool sends_products(uint32_t region) const {
    return is_one_of(region, regions - keep_all - keep_products, host_products);
  }
  constexpr bool sends_boundary(uint32_t region) const {
    return is_one_of(region, regions - keep_all, host_boundaries);
  }
  constexpr bool sends(uint32_t region) const {
    return sends_products(region) || sends_boundary(region);
  }
  constexpr bool keeps() const { return keep_all > 0 || keep_products > 0 || host_products > 0; }
  constexpr bool sends_any() const { return host_products > 0 || host_boundaries > 0; }
  constexpr uint32_t recompute() const {
    return regions - keep_all - keep_products - host_products;
  }
  bool operator==(const RegionPlan&) const = default;

 private:
  // Chooses `count` of the first n regions, evenly, region 0 among them.
  static constexpr bool is_one_of(uint32_t region, uint32_t n, uint32_t count) {
    if (region >= n || count == 0) return false;
    const auto chosen_before = [&](uint64_t i) { return (i * count + n - 1) / n; };
    return chosen_before(region + 1) > chosen_before(region);
  }
};

}  // namespace elixir
