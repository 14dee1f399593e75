// Blocks through a communicator that is handed in: Gloo's own collectives stand in for NCCL's.

#include <gmock/gmock.h>

#include <cmath>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "client/error.h"
#include "tests/client/collective_ranks.h"
#include "tests/client/forked_ranks.h"

namespace elixir {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kShard = 1000;

// Counts aborts; its collectives fail when told to.
class BreakableGloo : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  void abort() override { ++aborts; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& all, at::Tensor& mine,
                                                 const c10d::AllgatherOptions& how) override {
    TORCH_CHECK(!broken, "the communicator broke");
    return c10d::ProcessGroupGloo::_allgather_base(all, mine, how);
  }
  std::atomic<int> aborts = 0;
  bool broken = false;
};

struct RankWithBackend {
  RankWithBackend(uint32_t rank, uint32_t ranks, uint16_t port) {
    rendezvous = value_or_throw(Rendezvous::join(environment_of(rank, ranks, port)));
    const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    backend = c10::make_intrusive<BreakableGloo>(
        c10::make_intrusive<c10d::PrefixStore>("data", rendezvous->store()), static_cast<int>(rank),
        static_cast<int>(ranks), options);
    CollectiveOptions collectives;
    collectives.data = backend;
    group = value_or_throw(CollectiveGroup::create(*rendezvous, collectives));
  }
  std::unique_ptr<Rendezvous> rendezvous;
  c10::intrusive_ptr<BreakableGloo> backend;
  std::unique_ptr<CollectiveGroup> group;
};

float value_of(uint32_t rank, uint64_t i) {
  return std::sin(static_cast<float>(rank * 31 + i)) * static_cast<float>(1 + i % 7);
}

// Of two summands the order does not matter; of three, Gloo chooses its own.
TEST(CollectiveBackendTest, BlocksGoInPlace) {
  for (const uint32_t ranks : {2u, 3u}) {
    const uint16_t port = unused_port();
    run_threads(ranks, [&](uint32_t rank) {
      const RankWithBackend with(rank, ranks, port);
      EXPECT_FALSE(with.group->on_host());
      std::vector<float> block(ranks * kShard);
      for (uint64_t i = 0; i < block.size(); ++i) block[i] = value_of(rank, i);
      auto* bytes = reinterpret_cast<std::byte*>(block.data());
      with.group->reduce_scatter(bytes, kShard, ComputeType::kFp32)->wait();
      with.group->all_gather(bytes, kShard, ComputeType::kFp32)->wait();
      for (uint64_t i = 0; i < block.size(); ++i) {
        float sum = 0;
        for (uint32_t other = 0; other < ranks; ++other) sum += value_of(other, i);
        const float tolerance = ranks == 2 ? 0 : 1e-6f * static_cast<float>(7 * ranks);
        EXPECT_NEAR(block[i], sum, tolerance);
      }
    });
  }
}

TEST(CollectiveBackendTest, AFailureOfARankAbortsTheCommunicatorOfAll) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    const RankWithBackend with(rank, 2, port);
    std::vector<float> block(2 * kShard);
    auto* bytes = reinterpret_cast<std::byte*>(block.data());
    with.group->barrier();
    try {
      with.backend->broken = rank == 1;
      with.group->barrier();
      if (rank == 1) with.group->all_gather(bytes, kShard, ComputeType::kFp32);
      with.group->barrier();
      ADD_FAILURE();
    } catch (const Error& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("the communicator broke"));
      EXPECT_EQ(failure.code(), rank == 1 ? Code::kUnavailable : Code::kPeerLost);
      EXPECT_THAT(failure.what(), HasSubstr(rank == 1 ? "all-gather" : "rank 1 (pid "));
    }
    EXPECT_THROW(with.group->check(), Error);
    EXPECT_TRUE(eventually([&] { return with.backend->aborts > 0; }));
  });
}

}  // namespace
}  // namespace elixir
