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

// The regions of a pass keep this much. The last ones in forward are the first ones in backward, so
// what they keep lies in memory for the shortest time: they keep the most. Regions in regions keep
// nothing.
struct RegionPlan {
  uint32_t regions = 0;  // in a pass; regions beyond that keep nothing
  uint32_t keep_all = 0;
  uint32_t keep_products = 0;

  constexpr Keep keep(uint32_t region) const {
    if (region >= regions) return Keep::kNothing;
    const uint32_t behind = regions - 1 - region;
    if (behind < keep_all) return Keep::kAll;
    return behind - keep_all < keep_products ? Keep::kProducts : Keep::kNothing;
  }
  constexpr bool keeps() const { return keep_all > 0 || keep_products > 0; }
  bool operator==(const RegionPlan&) const = default;
};

}  // namespace elixir
