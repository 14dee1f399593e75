#pragma once

#include <string>

namespace elixir::ctl {

// What each line of `elixirctl status` means, under the names that it has there.
std::string status_legend();

}  // namespace elixir::ctl
