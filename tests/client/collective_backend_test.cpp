// Blocks through a communicator that is handed in: Gloo's own collectives stand in for NCCL's.

#include <gmock/gmock.h>

#include <cmath>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/throw_error.h"
#include "tests/client/collective_ranks.h"
#include "tests/client/forked_ranks.h"

namespace elixir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kShard = 1000;

// A collective as NCCL's are: who waits for it only lets a stream wait, and never hears of it
// again.
struct SilentWork final : c10d::Work {
  explicit SilentWork(const std::string& failure) {
    if (!failure.empty()) finish(std::make_exception_ptr(std::runtime_error(failure)));
  }
  void end() { finish(); }
  bool isCompleted() override { return ++asked, Work::isCompleted(); }
  bool wait(std::chrono::milliseconds) override { return true; }
  inline static std::atomic<int> asked = 0;
};

// Counts how it ends; its collectives fail when told to.
class BreakableGloo : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  void abort() override { ++aborts; }
  void shutdown() override { ++shutdowns; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& all, at::Tensor& mine,
                                                 const c10d::AllgatherOptions& how) override {
    TORCH_CHECK(!broken, "the communicator broke");
    if (silent) return c10::make_intrusive<SilentWork>(failure);
    return c10d::ProcessGroupGloo::_allgather_base(all, mine, how);
  }
  // Gloo's own never says that it is done.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& mine, at::Tensor& all, const c10d::ReduceScatterOptions& how) override {
    c10d::ProcessGroupGloo::_reduce_scatter_base(mine, all, how)->wait();
    auto done = c10::make_intrusive<SilentWork>("");
    done->end();
    return done;
  }
  std::atomic<int> aborts = 0, shutdowns = 0;
  bool broken = false, silent = false;
  std::string failure;  // of a silent collective; "": it never ends
};

struct RankWithBackend {
  RankWithBackend(uint32_t rank, uint32_t ranks, uint16_t port, double timeout_s = 0) {
    rendezvous = value_or_throw(Rendezvous::join(environment_of(rank, ranks, port)));
    const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    backend = c10::make_intrusive<BreakableGloo>(
        c10::make_intrusive<c10d::PrefixStore>("data", rendezvous->store()), static_cast<int>(rank),
        static_cast<int>(ranks), options);
    CollectiveOptions collectives;
    collectives.data = backend;
    collectives.timeout_s = timeout_s;
    group = value_or_throw(connect_group(*rendezvous, collectives));
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
      EXPECT_EQ(failure.code(), rank == 1 ? Code::kInternal : Code::kPeerLost);
      EXPECT_THAT(failure.what(), HasSubstr(rank == 1 ? "all-gather" : "rank 1 (pid "));
    }
    EXPECT_THROW(with.group->check(), Error);
    EXPECT_TRUE(eventually([&] { return with.backend->aborts > 0; }));
  });
}

// Each rank makes an all-gather of which it hears nothing, and looks from time to time.
Status status_in_the_end(RankWithBackend& with, const std::string& failure) {
  std::vector<float> block(2 * kShard);
  with.backend->silent = true;
  with.backend->failure = failure;
  Status status;
  const auto note = [&](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      status = Status(error.code(), error.what());
    }
  };
  note([&] {  // which another rank's failure may have overtaken
    with.group->all_gather(reinterpret_cast<std::byte*>(block.data()), kShard, ComputeType::kFp32)
        ->wait();
  });
  EXPECT_TRUE(eventually([&] {
    if (status.ok()) note([&] { with.group->check(); });
    return !status.ok();
  }));
  EXPECT_TRUE(eventually([&] { return with.backend->aborts > 0; }));
  return status;
}

// Nobody waits for the work of rank 1, and rank 0's would last for ever.
TEST(CollectiveBackendTest, ACollectiveThatFailsWithoutAWordIsFound) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    RankWithBackend with(rank, 2, port);
    const Status status = status_in_the_end(with, rank == 1 ? "the cable was cut" : "");
    EXPECT_THAT(status.message(), HasSubstr("the cable was cut"));
    EXPECT_EQ(status.code(), rank == 1 ? Code::kInternal : Code::kPeerLost);
    if (rank == 0) {
      EXPECT_THAT(status.message(), HasSubstr("rank 1 (pid "));
    }
    with.group.reset();
    EXPECT_EQ(with.backend->shutdowns, 0);
    EXPECT_EQ(with.backend->aborts, 1);
  });
}

// Of two ranks that see an error the one is named whose own it is.
TEST(CollectiveBackendTest, ARemoteErrorIsBlamedOnTheOther) {
  // Once is enough: rank 0 speaks for itself where rank 1 is held up for PeerWatch::kBlameS.
  EXPECT_TRUE(eventually([] {
    Status ends[2];
    const uint16_t port = unused_port();
    SilentWork::asked = 0;
    run_threads(2, [&](uint32_t rank) {
      RankWithBackend with(rank, 2, port);
      if (rank == 1) eventually([] { return SilentWork::asked >= 2; });  // rank 0's
      ends[rank] = status_in_the_end(
          with, rank == 1 ? "ncclSystemError: mine" : "ncclRemoteError: another's");
    });
    const auto blames_rank_1 = [](const Status& end) {
      return end.message().find("ncclSystemError: mine") != std::string::npos;
    };
    return blames_rank_1(ends[0]) && blames_rank_1(ends[1]) && ends[0].code() == Code::kPeerLost &&
           ends[1].code() == Code::kInternal;
  }));
}

// Rank 1 has made one gather more, and waits for its device, as a step does before ranks agree on
// it.
TEST(CollectiveBackendTest, ARankThatGathersOnceMoreIsNamed) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    RankWithBackend with(rank, 2, port, /*timeout_s=*/test::kPatienceS);
    with.group->barrier();
    Status status;
    if (rank == 1) {
      status = status_in_the_end(with, "");
    } else {
      try {
        with.group->agree(1, 0, 0);
      } catch (const Error& failure) {
        status = Status(failure.code(), failure.what());
      }
    }
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("rank 1 (pid "), HasSubstr("has made 1 collectives on its device"),
                      HasSubstr("rank 0 (pid "), HasSubstr("has made 0")));
  });
}

TEST(CollectiveBackendTest, ACollectiveThatDoesNotEndTimesOut) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    RankWithBackend with(rank, 2, port, /*timeout_s=*/3);
    const Status status = status_in_the_end(with, "");
    EXPECT_THAT(status.message(), HasSubstr("all-gather on the device has not ended within 3 s"));
  });
}

// Else torch complains on stderr.
TEST(CollectiveBackendTest, AtTheEndTheCommunicatorIsShutDown) {
  const uint16_t port = unused_port();
  run_threads(2, [&](uint32_t rank) {
    RankWithBackend with(rank, 2, port);
    std::vector<float> block(2 * kShard);
    with.group->all_gather(reinterpret_cast<std::byte*>(block.data()), kShard, ComputeType::kFp32)
        ->wait();
    with.group.reset();
    EXPECT_EQ(with.backend->shutdowns, 1);
    EXPECT_EQ(with.backend->aborts, 0);
  });
}

}  // namespace
}  // namespace elixir
