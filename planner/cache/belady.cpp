#include "planner/cache/belady.h"

#include "planner/cache/fetches.h"

namespace elixir::planner {

Result<CacheCount> simulate_cache(const std::vector<std::vector<uint32_t>>& steps,
                                  uint32_t blocks) {
  UseList uses;
  uses.reserve(steps.size(), steps.size());
  for (const std::vector<uint32_t>& step : steps) uses.add(step);
  const Result<std::vector<CacheFetch>> fetches = schedule_fetches(uses, blocks);
  if (!fetches.ok()) return fetches.status();
  return CacheCount{fetches->size(), 2 * fetches->size()};
}

}  // namespace elixir::planner
