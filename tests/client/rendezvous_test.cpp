#include "client/collectives/rendezvous.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <future>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "client/ranks/tcp.h"
#include "client/ranks/without_sigpipe.h"
#include "tests/client/collective_ranks.h"
#include "tests/support/outcomes.h"

namespace elixir {
namespace {

using ::testing::HasSubstr;

RendezvousOptions within(double timeout_s) {
  RendezvousOptions options;
  options.timeout_s = timeout_s;
  return options;
}

TEST(RendezvousTest, RanksKnowOneAnother) {
  const uint16_t port = unused_port();
  std::unique_ptr<Rendezvous> kept[3];  // rank 0's has the store at which the others still ask
  run_threads(3, [&](uint32_t rank) {
    auto rendezvous = Rendezvous::join(environment_of(rank, 3, port));
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
    EXPECT_EQ((*rendezvous)->rank(), rank);
    EXPECT_EQ((*rendezvous)->size(), 3u);
    EXPECT_EQ((*rendezvous)->address(), "127.0.0.1");
    for (uint32_t other = 0; other < 3; ++other) {
      EXPECT_EQ((*rendezvous)->members()[other].rank, other);
      EXPECT_EQ((*rendezvous)->members()[other].pid, static_cast<uint32_t>(::getpid()));
    }
    EXPECT_TRUE((*rendezvous)->meet("again").ok());
    kept[rank] = std::move(*rendezvous);
  });
}

TEST(RendezvousTest, OneRankNeedsNobody) {
  const auto rendezvous = Rendezvous::join(LaunchEnvironment());
  ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
  EXPECT_TRUE((*rendezvous)->meet("here").ok());
}

TEST(RendezvousTest, RanksThatAreMissingAreNamed) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t thread) {
    const auto rendezvous = Rendezvous::join(environment_of(thread * 2, 4, port), within(3));
    if (thread != 0) return;  // rank 0 may be gone before rank 2 has asked who is missing
    test::expect_refused(rendezvous.status(), Code::kTimedOut,
                         {"2 of 4 ranks", "missing: ranks 1, 3.", "ELIXIR_RENDEZVOUS_TIMEOUT_S"});
  });
}

TEST(RendezvousTest, WithoutRankZeroTheAddressIsNamed) {
  const uint16_t port = unused_port();
  const Status status = Rendezvous::join(environment_of(1, 2, port), within(0.5)).status();
  test::expect_refused(status, Code::kUnavailable,
                       {"127.0.0.1:" + std::to_string(port), "start rank 0"});
}

TEST(RendezvousTest, APortInUseIsNamed) {
  const Result<UniqueFd> listener = listen_tcp("127.0.0.1");
  const uint16_t port = *port_of(listener->get());
  const Status status = Rendezvous::join(environment_of(0, 2, port), within(0.5)).status();
  test::expect_refused(status, Code::kUnavailable, {std::to_string(port), "in use"});
}

TEST(RendezvousTest, WhatIsMissingInTheEnvironmentIsNamed) {
  LaunchEnvironment environment = environment_of(1, 2, 0);
  EXPECT_THAT(Rendezvous::join(environment).status().message(), HasSubstr("set MASTER_PORT"));
  environment.master_address = "";
  EXPECT_THAT(Rendezvous::join(environment).status().message(), HasSubstr("set MASTER_ADDR"));
  EXPECT_EQ(Rendezvous::join(environment).status().code(), Code::kInvalidArgument);
  ::setenv("ELIXIR_RENDEZVOUS_TIMEOUT_S", "soon", 1);
  EXPECT_THAT(Rendezvous::join(environment).status().message(), HasSubstr("'soon'"));
  ::unsetenv("ELIXIR_RENDEZVOUS_TIMEOUT_S");
}

TEST(RendezvousTest, AnInterfaceThatIsNotThereIsNamed) {
  ::setenv("GLOO_SOCKET_IFNAME", "nope0", 1);
  EXPECT_THAT(Rendezvous::join(LaunchEnvironment()).status().message(), HasSubstr("'nope0'"));
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  EXPECT_TRUE(Rendezvous::join(LaunchEnvironment()).ok());
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(RendezvousTest, TwoRanksOnOneGpuAreRefusedOnAll) {
  const uint16_t port = unused_port();
  run_threads(3, [&](uint32_t rank) {
    RendezvousOptions options;
    options.gpu_uuid = rank == 0 ? "GPU-a" : "GPU-b";
    const Status status = Rendezvous::join(environment_of(rank, 3, port), options).status();
    test::expect_refused(status, Code::kInvalidArgument,
                         {"rank 1 (pid", "rank 2 (pid", "GPU-b", "--exchange host"});
  });
}

// Raises SIGPIPE where the guard does not hold.
void write_to_nobody() {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::close(ends[1]);
}

TEST(WithoutSigpipeTest, HoldsForItsThreadAndThoseBegunMeanwhile) {
  std::thread later;
  std::promise<void> guard_is_gone;
  {
    const WithoutSigpipe guard;
    write_to_nobody();
    later = std::thread([gone = guard_is_gone.get_future()] {
      gone.wait();
      write_to_nobody();
    });
  }
  guard_is_gone.set_value();
  later.join();
  EXPECT_EXIT(write_to_nobody(), ::testing::KilledBySignal(SIGPIPE), "");
}

// As torch.distributed has it, wherever the starter has no store: rank 0 hosts one at MASTER_ADDR
// and MASTER_PORT, before or after Elixir does.
TEST(RendezvousTest, AStoreOfTorchAtTheSameAddressIsShared) {
  for (const bool torch_first : {true, false}) {
    SCOPED_TRACE(torch_first ? "torch first" : "Elixir first");
    const uint16_t port = unused_port();
    run_threads(2, [&](uint32_t rank) {
      c10::intrusive_ptr<c10d::TCPStore> store;
      const auto connect_torch = [&] {
        c10d::TCPStoreOptions options;
        options.port = port;
        options.isServer = rank == 0;
        options.numWorkers = 2;
        options.multiTenant = true;
        store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
      };
      if (torch_first) connect_torch();
      const auto rendezvous = Rendezvous::join(environment_of(rank, 2, port));
      ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
      if (!torch_first) ASSERT_NO_THROW(connect_torch());
      EXPECT_EQ(store->add("default_pg", 1) > 0, true);
      EXPECT_TRUE((*rendezvous)->meet("again").ok());
      EXPECT_EQ(store->add("default_pg", 0), 2);
    });
  }
}

// As torchrun has it: a store that outlives starts, and is nobody's of ours.
TEST(RendezvousTest, JobsOnOneStoreDoNotMix) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  run_threads(4, [&](uint32_t thread) {
    LaunchEnvironment environment = environment_of(thread % 2, 2, store->getPort());
    environment.starter_hosts_store = true;
    environment.job = thread < 2 ? "a" : "b";
    const auto rendezvous = Rendezvous::join(environment);
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
    auto group = connect_group(**rendezvous);
    ASSERT_TRUE(group.ok()) << group.status().message();
    const std::vector<char> jobs = (*group)->all_gather_values(environment.job[0]);
    EXPECT_EQ(jobs, std::vector<char>(2, environment.job[0]));
  });
}

}  // namespace
}  // namespace elixir
