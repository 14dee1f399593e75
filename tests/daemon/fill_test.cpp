#include "daemon/fill.h"

#include <fcntl.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "daemon/session_memory.h"
#include "daemon/topology.h"
#include "tests/daemon/daemon_process.h"
#include "tests/support/matchers.h"

namespace elixir::daemon {
namespace {

// Pieces of every kind: several, part of one, less than one.
std::vector<shm::Segment> unfilled() {
  std::vector<shm::Segment> segments;
  for (const uint64_t bytes : {5 * kFillPieceBytes + 12288, kFillPieceBytes, uint64_t{4096}}) {
    segments.push_back(must(shm::Segment::create_unfilled("test", bytes)));
  }
  return segments;
}
constexpr uint32_t kPieces = 8;

Status fill_all(const std::vector<shm::Segment>& segments, const FillOptions& options) {
  std::vector<const shm::Segment*> pointers;
  for (const shm::Segment& segment : segments) pointers.push_back(&segment);
  return fill_segments(pointers, options);
}

uint64_t held_bytes(const shm::Segment& segment) {
  struct stat info {};
  EXPECT_EQ(::fstat(segment.fd(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(FillTest, EveryPageIsThereWhateverTheNumberOfThreads) {
  for (const uint32_t threads : {1u, 2u, 3u, 40u}) {
    const std::vector<shm::Segment> segments = unfilled();
    for (const shm::Segment& segment : segments) EXPECT_EQ(held_bytes(segment), 0u);
    FillProgress progress;
    ASSERT_TRUE(fill_all(segments, {.threads = threads, .progress = &progress}).ok());
    uint64_t bytes = 0;
    for (const shm::Segment& segment : segments) {
      EXPECT_GE(held_bytes(segment), segment.bytes()) << threads;
      bytes += segment.bytes();
    }
    EXPECT_EQ(progress.filled_bytes.load(), bytes);
  }
}

// Each of the first pieces waits until all threads have one: a fill by fewer would not end.
TEST(FillTest, ThreadsFillAtTheSameTimeOnTheProcessorsOfTheNode) {
  constexpr uint32_t kThreads = 3;
  const std::vector<shm::Segment> segments = unfilled();
  const std::vector<int> cpus = {allowed_nodes().front().cpus.back()};
  std::mutex mutex;
  std::condition_variable all_here;
  std::set<std::thread::id> seen;
  bool elsewhere = false;
  FillOptions options{.threads = kThreads, .cpus = cpus};
  options.fill_piece = [&](const shm::Segment& segment, uint64_t offset, uint64_t bytes) {
    cpu_set_t set;
    CPU_ZERO(&set);
    ::sched_getaffinity(0, sizeof set, &set);
    std::unique_lock lock(mutex);
    elsewhere = elsewhere || CPU_COUNT(&set) != 1 || !CPU_ISSET(cpus[0], &set);
    seen.insert(std::this_thread::get_id());
    all_here.notify_all();
    all_here.wait(lock, [&] { return seen.size() == kThreads; });
    return segment.fill(offset, bytes);
  };
  ASSERT_TRUE(fill_all(segments, options).ok());
  EXPECT_EQ(seen.size(), kThreads);
  EXPECT_FALSE(elsewhere);
}

TEST(FillTest, TheFirstFailureEndsAllThreads) {
  const std::vector<shm::Segment> segments = unfilled();
  std::atomic<uint32_t> pieces{0};
  FillProgress progress;
  FillOptions options{.threads = 2, .progress = &progress};
  options.fill_piece = [&](const shm::Segment& segment, uint64_t offset, uint64_t bytes) {
    if (pieces.fetch_add(1) == 2) return error(Code::kResourceExhausted, "injected");
    return segment.fill(offset, bytes);
  };
  expect_refused(fill_all(segments, options), Code::kResourceExhausted, {"injected"});
  EXPECT_LT(progress.filled_bytes.load(), kPieces * kFillPieceBytes);
  EXPECT_LT(pieces.load(), kPieces);
}

TEST(FillTest, ACancelledFillEndsWithThePieceInHand) {
  const std::vector<shm::Segment> segments = unfilled();
  FillProgress progress;
  std::atomic<uint32_t> pieces{0};
  FillOptions options{.threads = 2, .progress = &progress};
  options.fill_piece = [&](const shm::Segment&, uint64_t, uint64_t) {
    ++pieces;
    progress.cancelled = true;
    return Status();
  };
  EXPECT_EQ(fill_all(segments, options).code(), Code::kUnavailable);
  EXPECT_LE(pieces.load(), 2u);
}

// Between admission and the last page others may take the memory.
TEST(FillTest, EndsWhereTheRoomRunsOut) {
  constexpr uint64_t kPiecesOfALook = kRoomBytes / kFillPieceBytes;
  shm::Segment segment = must(shm::Segment::create_unfilled("test", 6 * kRoomBytes));
  const shm::Segment* const segments[] = {&segment};
  std::atomic<uint64_t> looks{0}, pieces{0};
  FillProgress progress;
  FillOptions options{.threads = 2, .progress = &progress};
  options.fill_piece = [&](const shm::Segment&, uint64_t, uint64_t) {
    ++pieces;
    return Status();
  };
  options.check_room = [&] {
    return ++looks < 3 ? Status() : error(Code::kResourceExhausted, "none is left");
  };
  expect_refused(fill_segments(segments, options), Code::kResourceExhausted, {"none is left"});
  // While one thread is told so, the other one goes on to its next look.
  EXPECT_GE(looks.load(), 3u);
  EXPECT_LE(looks.load(), 4u);
  EXPECT_LE(pieces.load(), 3 * kPiecesOfALook);
  options.check_room = [&] { return Status(); };
  EXPECT_TRUE(fill_segments(segments, options).ok());
}

SessionMemory::Options session_options() {
  shm::Shape shape;
  shape.n_chunks = 2;
  shape.chunk_numel = 1 << 20;
  return {.shape = shape};
}

TEST(SessionMemoryTest, AFailureGivesAllMemoryBack) {
  const size_t before = testing::mapped_memfds(::getpid());
  const auto descriptors = [] {
    const std::filesystem::directory_iterator folder("/proc/self/fd");
    return std::distance(begin(folder), end(folder));
  };
  const auto descriptors_before = descriptors();
  SessionMemory::Options options = session_options();
  options.fill.threads = 2;
  std::atomic<uint32_t> pieces{0};
  options.fill.fill_piece = [&](const shm::Segment& segment, uint64_t offset, uint64_t bytes) {
    if (pieces.fetch_add(1) == 5) return error(Code::kResourceExhausted, "injected");
    return segment.fill(offset, bytes);
  };
  EXPECT_EQ(SessionMemory::create(options).status().message(), "injected");
  EXPECT_GT(pieces.load(), 5u);
  EXPECT_EQ(testing::mapped_memfds(::getpid()), before);
  EXPECT_EQ(descriptors(), descriptors_before);
}

// As one of the segments that were there from the start.
TEST(SessionMemoryTest, PagesThatAreGoneFromSumsFilledLaterAreNoticed) {
  SessionMemory memory = must(SessionMemory::create(session_options()));
  const shm::Segment& sums = memory.sums();
  ASSERT_TRUE(sums.fill(0, sums.bytes()).ok());
  memory.sums_filled();
  EXPECT_FALSE(memory.lost_pages());
  ASSERT_EQ(::fallocate(sums.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        static_cast<off_t>(sums.page_bytes())),
            0);
  EXPECT_TRUE(memory.lost_pages());
}

// Nothing is there at the first page of the mapping any more, as after an error of the memory. The
// file has all its blocks.
void lose_first_page(const shm::Segment& segment) {
  const UniqueFd empty(::memfd_create("empty", MFD_CLOEXEC));
  ASSERT_NE(::mmap(segment.data(), segment.page_bytes(), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, empty.get(), 0),
            MAP_FAILED);
}

TEST(SessionMemoryTest, APageThatIsMissedWhenItIsUsedIsNoticedThoughNoBlockIsGone) {
  using Member = const shm::Segment& (SessionMemory::*)() const;
  for (const Member member :
       {&SessionMemory::control, &SessionMemory::grads, &SessionMemory::params,
        &SessionMemory::state, &SessionMemory::sums}) {
    SessionMemory memory = must(SessionMemory::create(session_options()));
    const shm::Segment& sums = memory.sums();
    ASSERT_TRUE(sums.fill(0, sums.bytes()).ok());
    memory.sums_filled();
    const shm::Segment& segment = (memory.*member)();
    lose_first_page(segment);
    EXPECT_FALSE(memory.lost_pages());
    *reinterpret_cast<volatile std::byte*>(segment.data()) = std::byte{1};
    EXPECT_TRUE(memory.lost_pages());
  }
}

TEST(SessionMemoryTest, LiesOnTheNodeThatWasAskedFor) {
  for (const NodeCpus& node : allowed_nodes()) {
    SessionMemory::Options options = session_options();
    options.numa_node = node.node;
    options.fill.threads = 2;
    const SessionMemory memory = must(SessionMemory::create(options));
    int page_node = -1;
    const long asked =
        ::get_mempolicy(&page_node, nullptr, 0, memory.state().data() + kFillPieceBytes + 4096,
                        MPOL_F_NODE | MPOL_F_ADDR);
    if (asked != 0) GTEST_SKIP() << "the system tells no page's node";
    EXPECT_EQ(page_node, node.node);
  }
}

TEST(FillTest, ALackOfElixirdsOwnMemoryIsAFailureAsAnyOther) {
  for (const uint32_t threads : {1u, 3u}) {
    const std::vector<shm::Segment> segments = unfilled();
    FillProgress progress;
    FillOptions options{.threads = threads, .progress = &progress};
    options.check_room = []() -> Status { throw std::bad_alloc(); };
    const Status status = fill_all(segments, options);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
    EXPECT_TRUE(progress.failed.load());
  }
}

}  // namespace
}  // namespace elixir::daemon
