#pragma once

// Ranks of one node that meet on a port of their own, for tests of the collectives.

#include <gtest/gtest.h>

#include <functional>

#include "client/collectives/connect_group.h"
#include "client/collectives/rendezvous.h"
#include "tests/support/port.h"
#include "tests/support/run_threads.h"

namespace elixir {

using test::unused_port;

inline LaunchEnvironment environment_of(uint32_t rank, uint32_t ranks, uint16_t port) {
  LaunchEnvironment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = ranks;
  environment.job = "test";
  environment.starter = "torchrun";
  environment.master_address = "127.0.0.1";
  environment.master_port = port;
  return environment;
}

// Runs `body` in one thread per rank, each with its own group.
inline void run_group(uint32_t ranks, const std::function<void(CollectiveGroup&)>& body,
                      const CollectiveOptions& options = {}) {
  const uint16_t port = unused_port();
  run_threads(ranks, [&](uint32_t rank) {
    auto rendezvous = Rendezvous::join(environment_of(rank, ranks, port));
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
    auto group = connect_group(**rendezvous, options);
    ASSERT_TRUE(group.ok()) << group.status().message();
    body(**group);
  });
}

}  // namespace elixir
