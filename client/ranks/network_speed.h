#pragma once

#include <string>

namespace elixir {

// The rate of this node's fastest network link that is up, in GB/s of 1e9 bytes. Links without a
// device, such as bridges, do not count. Returns 0 if the system tells none. It is read from
// /sys/class/net and /sys/class/infiniband. `root` is put before /sys.
double network_gb_s(const std::string& root = "");

}  // namespace elixir
