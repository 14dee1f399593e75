#pragma once

#include <string>
#include <string_view>

namespace elixir {

// What a terminal would obey as '?': control characters, also those that UTF-8 has in two bytes
// (U+0080 to U+009F) and those bytes alone. Names and texts of peers and of foreign files go
// through it. `lines`: where there may be several, line ends stay.
std::string printable(std::string_view text, bool lines = false);

}  // namespace elixir
