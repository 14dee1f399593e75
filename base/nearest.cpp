#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace elixir {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : known) {
    const auto [shorter, longer] = std::minmax({name.size(), candidate.size()});
    const size_t far = std::min(best_distance, longer / 2 + 1);
    if (longer - shorter >= far) continue;  // whoever asks may write a long text
    const size_t distance = edit_distance(name, candidate);
    if (distance < far) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace elixir
