#pragma once

#include <string>
#include <string_view>

namespace elixir::ctl {

// Formats elixird's answer (a JSON object) as a screen for people. A field that is missing or of an
// unexpected type is shown as "-". Control characters for a terminal are removed from text.
std::string status_text(std::string_view answer);

}  // namespace elixir::ctl
