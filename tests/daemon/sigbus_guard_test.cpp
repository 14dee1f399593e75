#include "daemon/sigbus_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/fd.h"

namespace elixir::daemon {
namespace {

// Mapped memory that loses its pages: a memfd that is shorter than its mapping.
class Vanishing {
 public:
  explicit Vanishing(size_t pages) : fd_(::memfd_create("vanishing", MFD_CLOEXEC)), pages_(pages) {
    resize(pages);
    data_ = static_cast<char*>(
        ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  }
  ~Vanishing() { ::munmap(data_, bytes()); }
  Vanishing(const Vanishing&) = delete;

  static size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }
  size_t bytes() const { return pages_ * page_bytes(); }
  volatile char& at(size_t page) { return data_[page * page_bytes()]; }
  void resize(size_t pages) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(pages * page_bytes())), 0);
  }
  SigbusGuard guard() { return SigbusGuard(data_, bytes(), page_bytes()); }

 private:
  UniqueFd fd_;
  size_t pages_;
  char* data_ = nullptr;
};

TEST(SigbusGuard, ZerosInPlaceOfWhatIsGone) {
  Vanishing memory(4), untouched(1);
  const SigbusGuard guard = memory.guard(), other = untouched.guard();
  for (size_t page = 0; page < 4; ++page) memory.at(page) = 7;
  memory.resize(2);
  EXPECT_FALSE(guard.hit());
  EXPECT_EQ(memory.at(3), 0);
  EXPECT_TRUE(guard.hit());
  memory.at(2) = 5;  // writing does the same
  EXPECT_EQ(memory.at(2), 5);
  EXPECT_EQ(memory.at(1), 7);  // what is there stays
  EXPECT_FALSE(other.hit());
}

TEST(SigbusGuard, InAnyThreadAndMoved) {
  Vanishing memory(64);
  SigbusGuard first = memory.guard();
  const SigbusGuard guard = std::move(first);
  memory.resize(0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&memory] {
      for (size_t page = 0; page < 64; ++page) EXPECT_EQ(memory.at(page), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(guard.hit());
  EXPECT_FALSE(first.hit());
}

TEST(SigbusGuard, PlacesAreUsedAgain) {
  Vanishing memory(1);
  for (int i = 0; i < 3 * SigbusGuard::kMostGuards; ++i) EXPECT_FALSE(memory.guard().hit());
  const SigbusGuard guard = memory.guard();
  memory.resize(0);
  EXPECT_EQ(memory.at(0), 0);
  EXPECT_TRUE(guard.hit());
}

TEST(SigbusGuardDeathTest, ElsewhereItEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto touch_unguarded = [] {
    Vanishing guarded(1), memory(1);
    const SigbusGuard guard = guarded.guard();
    memory.resize(0);
    memory.at(0) = 1;
  };
  EXPECT_EXIT(touch_unguarded(), ::testing::KilledBySignal(SIGBUS), "");
  const auto touch_after = [] {
    Vanishing memory(1);
    { const SigbusGuard guard = memory.guard(); }
    memory.resize(0);
    memory.at(0) = 1;
  };
  EXPECT_EXIT(touch_after(), ::testing::KilledBySignal(SIGBUS), "");
  const auto sent = [] {
    Vanishing memory(1);
    const SigbusGuard guard = memory.guard();
    ::kill(::getpid(), SIGBUS);
    ::pause();
  };
  EXPECT_EXIT(sent(), ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace elixir::daemon
