#pragma once

#include <string>

namespace elixir::ctl {

// Explains each line of `elixirctl status`, under the name that the line has there.
std::string status_legend();

}  // namespace elixir::ctl
