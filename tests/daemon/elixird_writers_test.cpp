// Who can write what of a session's memory, and what a trainer that can write its parameters does
// with it to others: nothing.

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "base/compute_type_names.h"
#include "shm/shape.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/matchers.h"

namespace elixir::testing::writers {
namespace {

constexpr uint64_t kChunkNumel = 128 * 11;

class Writers : public ::testing::Test {
 protected:
  std::unique_ptr<FakeJob> start(const std::string& name, ComputeType type, uint32_t pins_params,
                                 shm::Exchange exchange = shm::Exchange::kHost) {
    FakeModel model = make_model(type, 2, 2, kChunkNumel);
    model.shape.exchange = exchange;
    return must(FakeJob::attach({.folder = daemon_.folder(),
                                 .name = name,
                                 .model = model,
                                 .pins_params = pins_params,
                                 .keeps_sums = true}));
  }

  DaemonProcess daemon_{{"--workers", "2", "--no-bandwidth-probe"}};
};

bool can_write(int fd) { return (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR; }

// What the descriptor itself lets its holder do now.
int errno_of_a_new_mapping(int fd) {
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return errno;
  ::munmap(mapped, 4096);
  return 0;
}

TEST_F(Writers, DescriptorsOfParamsCanBeWrittenByThoseWhoPageLockThemAlone) {
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const uint32_t pins : {0u, 1u}) {
      auto job = start(fmt::format("fds-{}-{}", shm::exchange_name(exchange), pins),
                       ComputeType::kBf16, pins, exchange);
      for (uint32_t rank = 0; rank < 2; ++rank) {
        EXPECT_FALSE(can_write(job->rank(rank).sums_fd()));
        for (uint32_t owner = 0; owner < 2; ++owner) {
          const bool reads = exchange == shm::Exchange::kHost || owner == rank;
          EXPECT_EQ(can_write(job->rank(rank).params(owner).fd()), pins == 1 && reads)
              << rank << " of " << owner;
          EXPECT_FALSE(can_write(job->rank(rank).state(owner).fd()));
        }
      }
    }
  }
}

TEST_F(Writers, NobodyBecomesOneOnceAllHaveSaidHello) {
  FakeJob job({.folder = daemon_.folder(),
               .model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel),
               .pins_params = 1});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    job.ranks().push_back(must(FakeTrainer::attach(job.options_of(rank))));
  }
  FakeTrainer& trainer = job.rank(0);
  ASSERT_TRUE(trainer.await_peers().ok() && trainer.hello().ok());
  // The control: before the last Hello it could.
  EXPECT_EQ(errno_of_a_new_mapping(trainer.params(1).fd()), 0);
  ASSERT_TRUE(job.rank(1).await_peers().ok() && job.rank(1).hello().ok());
  for (const shm::Segment* segment : {&trainer.params(1), &trainer.grads()}) {
    EXPECT_EQ(errno_of_a_new_mapping(segment->fd()), EPERM);
    EXPECT_EQ(::pwrite(segment->fd(), "x", 1, 0), -1);
    // A hole would be filled again when elixird comes by, from memory that may not be there.
    EXPECT_EQ(::fallocate(segment->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    EXPECT_EQ(::madvise(segment->data(), 4096, MADV_REMOVE), -1);
    segment->data()[0] = std::byte{1};  // the mapping that was there is as it was
  }
  EXPECT_EQ(daemon_.log().find("not_sealed"), std::string::npos);
}

TEST_F(Writers, AnyBitsAreAParameterAndOthersNoticeNothing) {
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kFp16, ComputeType::kBf16}) {
    const std::string name = compute_type_name(type);
    auto bystander = start(name + "-bystander", type, 0);
    auto hostile = start(name + "-hostile", type, 1);
    ASSERT_TRUE(bystander->load().ok() && hostile->load().ok());
    std::atomic<bool> stop{false};
    std::atomic<uint32_t> rounds{0};  // in which it wrote everything
    std::thread writer([&] {
      std::mt19937_64 random(1);
      while (!stop) {
        for (uint32_t owner = 0; owner < 2; ++owner) {
          const shm::Segment& params = hostile->rank(0).params(owner);
          for (uint64_t at = 0; at + 8 <= params.bytes(); at += 8) {
            const uint64_t bits = random();
            std::memcpy(params.data() + at, &bits, sizeof bits);
          }
        }
        ++rounds;
      }
    });
    Reference reference(bystander->model());
    for (uint32_t step = 1; step <= 20; ++step) {
      const uint32_t before = rounds;
      while (rounds < before + 2) std::this_thread::yield();
      EXPECT_TRUE(hostile->step(step).ok());
      EXPECT_TRUE(bystander->step(step).ok());
      reference.step(make_record(step, 2));
    }
    stop = true;
    writer.join();
    EXPECT_TRUE(bystander->compare(reference).ok());
    // The control: it did spoil what elixird works with. (FP16 has masters of its own.)
    if (type != ComputeType::kFp16) {
      EXPECT_FALSE(hostile->compare(reference).ok());
    }
    EXPECT_TRUE(daemon_.running()) << daemon_.log();
    bystander->detach();
    hostile->detach();
  }
}

}  // namespace
}  // namespace elixir::testing::writers
