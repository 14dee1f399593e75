#pragma once

#include <string>
#include <string_view>

namespace elixir {

// Replaces by '?' the characters that a terminal would obey. These are control characters,
// including those of two bytes in UTF-8 (U+0080 to U+009F), and these bytes alone. Use it for names
// and texts of peers and of foreign files. `lines`: the text may have several lines, so line ends
// stay.
std::string printable(std::string_view text, bool lines = false);

}  // namespace elixir
