// When a rank of Gloo counts as connected: the other one here is a group of Gloo's own.

#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
// As client/collectives/gloo_transport.cpp includes it, and is compiled.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "client/collectives/gloo_transport.h"
#include "tests/client/collective_ranks.h"

namespace elixir {
namespace {

// Gloo's constructor returns on one rank while another still waits for that one's answer.
TEST(GlooTransportTest, ARankIsConnectedWhenTheOthersSaidThatTheyAre) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    const auto rendezvous = Rendezvous::join(environment_of(rank, 2, port));
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
    if (rank == 1) {
      const auto transport = GlooTransport::connect(**rendezvous, 60);
      EXPECT_EQ(transport.status().code(), Code::kPeerLost) << transport.status().message();
      return;
    }
    ASSERT_TRUE((*rendezvous)->meet("gloo").ok());
    const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    const auto store = c10::make_intrusive<c10d::PrefixStore>("gloo", (*rendezvous)->store());
    c10d::ProcessGroupGloo says_nothing(store, 0, 2, options);
  });
}

}  // namespace
}  // namespace elixir
