#include "client/collectives/connect_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "base/throw_error.h"
#include "tests/client/collective_ranks.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

PlacedDevice host(const std::string& gpu_uuid = "") {
  PlacedDevice placed = make_device(c10::Device(c10::DeviceType::CPU), 0, {});
  placed.gpu_uuid = gpu_uuid;
  return placed;
}

TEST(ConnectRanks, OnHostsMeetAndGather) {
  constexpr uint32_t kRanks = 3;
  const uint16_t port = unused_port();
  run_threads(kRanks, [&](uint32_t rank) {
    const ConnectedRanks ranks = connect_ranks(environment_of(rank, kRanks, port), host());
    EXPECT_EQ(ranks.rendezvous->rank(), rank);
    EXPECT_EQ(ranks.group->rank(), rank);
    EXPECT_EQ(ranks.group->size(), kRanks);
    EXPECT_TRUE(ranks.group->on_host());
    EXPECT_EQ(ranks.group->all_gather_values(10 + rank), (std::vector<uint32_t>{10, 11, 12}));
    ranks.group->barrier();
  });
}

TEST(ConnectRanks, MoreThanTheLimitOfDescriptorsAllowsAreRefused) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const uint16_t port = unused_port();
  const std::filesystem::directory_iterator open("/proc/self/fd");  // earlier tests' among them
  const rlim_t allowed = static_cast<rlim_t>(std::distance(begin(open), end(open))) + 100;
  const rlimit few{allowed, allowed};
  EXPECT_EXIT(
      {
        if (::setrlimit(RLIMIT_NOFILE, &few) != 0) ::_exit(2);
        try {
          connect_ranks(environment_of(0, 4096, port), host());
        } catch (const Error& failure) {
          std::fputs(failure.what(), stderr);
          ::_exit(failure.exit_code());
        }
        ::_exit(1);
      },
      ::testing::ExitedWithCode(3), "4096 ranks need .* are allowed.*ulimit -n");
}

TEST(ConnectRanks, OneRankIsConnectedWithItself) {
  const ConnectedRanks ranks = connect_ranks(LaunchEnvironment(), host());
  EXPECT_EQ(ranks.group->size(), 1u);
  EXPECT_EQ(ranks.group->all_gather_values(7), std::vector<int>{7});
}

// The device's GPU is the one that is compared.
TEST(ConnectRanks, TwoOnOneGpuAreRefused) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    expect_thrown(Code::kInvalidArgument, {"GPU"},
                  [&] { connect_ranks(environment_of(rank, 2, port), host("GPU-7")); });
  });
}

TEST(ConnectRanks, OnTwoGpusOfTheirOwnMeet) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    const ConnectedRanks ranks =
        connect_ranks(environment_of(rank, 2, port), host("GPU-" + std::to_string(rank)));
    ranks.group->barrier();
    EXPECT_EQ(ranks.group->size(), 2u);
  });
}

// Else torch would end a collective that may take longer.
TEST(ConnectRanks, NcclsOwnLimitComesBehindTheGroups) {
  for (const double timeout_s : {0.5, 3.0, 1800.0, 7200.0, 1e6}) {
    const std::chrono::duration<double> own = nccl_timeout(timeout_s);
    EXPECT_GE(own.count(), timeout_s + 30) << timeout_s;
  }
  for (const double timeout_s : {1e9, 1e300}) {
    EXPECT_EQ(nccl_timeout(timeout_s), kLongestNcclTimeout) << timeout_s;
  }
}

TEST(ConnectRanks, WithoutAnAddressThrow) {
  LaunchEnvironment environment = environment_of(0, 2, 1);
  environment.master_address = "";
  expect_thrown(Code::kInvalidArgument, {}, [&] { connect_ranks(environment, host()); });
}

}  // namespace
}  // namespace elixir
