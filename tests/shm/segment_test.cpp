#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

#include "tests/support/matchers.h"

namespace elixir::shm {
namespace {

constexpr uint64_t kBytes = 3 * 4096;

UniqueFd plain_memfd(uint64_t bytes, unsigned seals) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

UniqueFd duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

class SegmentTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(made_.ok()) << made_.status().message(); }
  // As another process has it.
  Result<Segment> map(Access access) {
    return Segment::map(duplicate(made_->fd()), kBytes, access);
  }

  Result<Segment> made_ = Segment::create("test", kBytes);
};

TEST_F(SegmentTest, IsZeroAndShared) {
  EXPECT_EQ(made_->bytes(), kBytes);
  EXPECT_TRUE(std::all_of(made_->data(), made_->data() + kBytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  Segment seen = must(map(Access::kReadOnly));
  made_->data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(seen.data()[kBytes - 1], std::byte{7});
}

TEST_F(SegmentTest, CannotBeResizedByAnyHolder) {
  for (uint64_t bytes : {uint64_t{0}, kBytes - 1, kBytes + 4096}) {
    EXPECT_NE(::ftruncate(made_->fd(), static_cast<off_t>(bytes)), 0) << bytes;
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_NE(::fcntl(made_->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0) << "and it is written";
  EXPECT_EQ(errno, EBUSY);
}

TEST_F(SegmentTest, ClosedToNewWritersItKeepsTheOldOnes) {
  Segment before = must(map(Access::kReadWrite));
  ASSERT_TRUE(made_->close_to_new_writers().ok());
  EXPECT_FALSE(map(Access::kReadWrite).ok());
  EXPECT_TRUE(map(Access::kReadOnly).ok());
  before.data()[0] = std::byte{1};
  made_->data()[1] = std::byte{2};
  EXPECT_EQ(made_->data()[0], std::byte{1});
  EXPECT_EQ(before.data()[1], std::byte{2});
  // One that it has: only that seals are sealed refuses it.
  EXPECT_NE(::fcntl(made_->fd(), F_ADD_SEALS, F_SEAL_SHRINK), 0) << "more seals were possible";
  EXPECT_EQ(errno, EPERM);
}

TEST_F(SegmentTest, ProtectedItIsReadAndFollowsWhatOthersWrite) {
  Segment seen = must(map(Access::kReadWrite));
  ASSERT_TRUE(seen.protect().ok());
  made_->data()[7] = std::byte{7};
  EXPECT_EQ(seen.data()[7], std::byte{7});
  EXPECT_DEATH(seen.data()[7] = std::byte{8}, "");  // a sanitizer reports it first
}

TEST_F(SegmentTest, IsReservedInFull) {
  struct stat info {};
  ASSERT_EQ(::fstat(made_->fd(), &info), 0);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, kBytes);
  // The control: a memfd that is only sized holds nothing.
  const UniqueFd sparse = plain_memfd(kBytes, 0);
  ASSERT_EQ(::fstat(sparse.get(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
}

// What the kernel says of the mapping at this address: "rd wr sh mr mw me ms dd sd".
std::string flags_of_mapping(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    }
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

// Of elixird or of a trainer: states would go to a disk for minutes, and ranks that wait would take
// it for an elixird that stands still.
TEST_F(SegmentTest, ACrashDoesNotDumpIt) {
  Segment seen = must(map(Access::kReadOnly));
  // The control: a mapping that is dumped.
  void* const plain = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, made_->fd(), 0);
  ASSERT_NE(plain, MAP_FAILED);
  const std::string dumped = flags_of_mapping(plain);
  ::munmap(plain, kBytes);
  if (dumped.empty()) GTEST_SKIP() << "the system does not tell";
  EXPECT_EQ(dumped.find(" dd "), std::string::npos) << dumped;
  for (const Segment* segment : {&*made_, &seen}) {
    const std::string flags = flags_of_mapping(segment->data());
    EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
  }
}

TEST_F(SegmentTest, MoreThanTheMachineHasIsAnErrorNow) {
  EXPECT_EQ(Segment::create("test", 1ull << 50).status().code(), Code::kResourceExhausted);
}

TEST_F(SegmentTest, TheHookSeesTheMappingBeforeItIsReserved) {
  void* seen = nullptr;
  uint64_t seen_bytes = 0;
  bool empty = false;
  made_ = Segment::create("test", kBytes, [&](void* address, uint64_t bytes) {
    seen = address;
    seen_bytes = bytes;
    unsigned char resident[3] = {1, 1, 1};
    empty = ::mincore(address, bytes, resident) == 0 && (resident[0] & 1) == 0;
  });
  ASSERT_TRUE(made_.ok());
  EXPECT_EQ(seen, made_->data());
  EXPECT_EQ(seen_bytes, kBytes);
  EXPECT_TRUE(empty);
}

TEST_F(SegmentTest, RefusesWhatItsOwnerCouldPullAway) {
  const Result<Segment> unsealed = Segment::map(plain_memfd(kBytes, 0), kBytes, Access::kReadWrite);
  EXPECT_EQ(unsealed.status().code(), Code::kProtocol);
  const Result<Segment> grow_only =
      Segment::map(plain_memfd(kBytes, F_SEAL_GROW), kBytes, Access::kReadWrite);
  EXPECT_EQ(grow_only.status().code(), Code::kProtocol);
  const Segment sealed =
      must(Segment::map(plain_memfd(kBytes, F_SEAL_SHRINK), kBytes, Access::kReadWrite));
}

TEST_F(SegmentTest, RefusesWhatIsTooSmallOrNoMemory) {
  EXPECT_EQ(
      Segment::map(plain_memfd(4096, F_SEAL_SHRINK), kBytes, Access::kReadOnly).status().code(),
      Code::kProtocol);
  EXPECT_EQ(Segment::map(UniqueFd(::open("/dev/zero", O_RDWR)), kBytes, Access::kReadOnly)
                .status()
                .code(),
            Code::kProtocol);
  EXPECT_EQ(Segment::map(UniqueFd(), kBytes, Access::kReadOnly).status().code(), Code::kProtocol);
}

TEST_F(SegmentTest, ASmallSegmentHasBasePages) {
  EXPECT_EQ(made_->page_bytes(), static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
}

TEST_F(SegmentTest, AReadOnlyDescriptorCannotBeMappedForWriting) {
  UniqueFd fd = must(made_->read_only_fd());
  EXPECT_FALSE(Segment::map(duplicate(fd.get()), kBytes, Access::kReadWrite).ok());
  const Segment seen = must(Segment::map(std::move(fd), kBytes, Access::kReadOnly));
  *made_->data() = std::byte{42};
  EXPECT_EQ(*seen.data(), std::byte{42});
  EXPECT_DEATH(*seen.data() = std::byte{1}, "");
}

}  // namespace
}  // namespace elixir::shm
