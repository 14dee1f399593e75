#pragma once

#include <span>
#include <string>
#include <string_view>

namespace elixir {

// Levenshtein's: so many insertions, deletions and substitutions make `b` of `a`.
size_t edit_distance(std::string_view a, std::string_view b);

// The known name with the least edit distance (Levenshtein) to `name`; "" when none is within
// half of the longer name's length.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace elixir
