#pragma once

#include <string>
#include <string_view>

namespace elixir::ctl {

// elixird's answer (a JSON object) as a screen for people. A field that is absent or of another
// type than expected is shown as "-"; text is stripped of what a terminal would obey.
std::string status_text(std::string_view answer);

}  // namespace elixir::ctl
