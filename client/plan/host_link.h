#pragma once

namespace elixir {

// The link that a HostDevice plays. GB/s of 1e9 bytes, greater than zero.
struct HostLink {
  double h2d_gb_s = 0, d2h_gb_s = 0;
  double joint_gb_s = 0;  // of both directions together; 0: no limit
  double latency_us = 0;  // of a copy
};

}  // namespace elixir
