#pragma once

#include <span>
#include <string>
#include <string_view>

namespace elixir {

// The number of insertions, deletions and substitutions that make `b` of `a` (Levenshtein).
size_t edit_distance(std::string_view a, std::string_view b);

// The known name with the least edit distance to `name`; "" if none is within half of the longer
// name's length.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace elixir
