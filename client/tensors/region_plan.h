#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace elixir {

// A checkpointed region keeps between its two runs:
// - kNothing: its inputs. Backward computes the rest again.
// - kProducts: also the results of products and attention that backward would compute again
// - kAll: everything that backward reads. It runs once, as without checkpoint().
enum class Keep : uint8_t { kNothing, kProducts, kAll };

// The regions of a pass keep this much. The last ones in forward are the first ones in backward, so
// what they keep lies in memory for the shortest time: they keep the most. Regions in regions keep
// nothing.
struct RegionPlan {
  uint32_t regions = 0;  // in a pass; regions beyond that keep nothing
  uint32_t keep_all = 0;
  uint32_t keep_products = 0;

  Keep keep(uint32_t region) const;
  bool operator==(const RegionPlan&) const = default;
};

// The plan for all regions of this process that begin from now on; at first one that keeps nothing.
// Any thread.
void set_region_plan(const RegionPlan& plan);
RegionPlan region_plan();

// A region of a pass, from its first run to its backward, or until nobody can run that any more.
// Regions of one thread count from 0.
class RegionNumber {
 public:
  RegionNumber();
  ~RegionNumber() { end(); }
  RegionNumber(const RegionNumber&) = delete;
  RegionNumber& operator=(const RegionNumber&) = delete;

  uint32_t value() const { return value_; }
  void end();

 private:
  std::shared_ptr<std::atomic<uint32_t>> count_;  // the thread's count of regions; null after end()
  const uint32_t value_;
};

}  // namespace elixir
