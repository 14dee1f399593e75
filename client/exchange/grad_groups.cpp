#include "client/exchange/grad_groups.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/throw_error.h"

namespace elixir {

uint32_t lacks_gradients(std::span<const shm::GradGroup> groups) {
  return std::any_of(groups.begin(), groups.end(), [](const shm::GradGroup& group) {
    return group.load(std::memory_order_relaxed) == shm::kNoGradient;
  });
}

void share_grad_groups(std::span<shm::GradGroup> groups, const std::vector<std::string>& names,
                       CollectiveGroup& ranks) {
  using Piece = std::array<uint8_t, CollectiveGroup::kMaxValueBytes>;
  for (size_t first = 0; first < groups.size(); first += Piece().size()) {
    const size_t count = std::min(Piece().size(), groups.size() - first);
    Piece mine{};
    for (size_t i = 0; i < count; ++i) mine[i] = groups[first + i].load(std::memory_order_relaxed);
    for (const Piece& theirs : ranks.all_gather_values(mine)) {
      for (size_t i = 0; i < count; ++i) {
        const uint8_t seen = std::exchange(mine[i], std::max(mine[i], theirs[i]));
        if (seen == theirs[i] || seen == shm::kNoGradient || theirs[i] == shm::kNoGradient)
          continue;
        throw Error(error(Code::kProtocol,
                          "parameter '{}' is in group {} on one rank and in group {} on another: "
                          "groups must be the same on all ranks",
                          names.at(first + i), seen - 1, theirs[i] - 1));
      }
    }
    for (size_t i = 0; i < count; ++i) groups[first + i].store(mine[i], std::memory_order_relaxed);
  }
}

}  // namespace elixir
