// Segments in huge pages, of which the machine has few: nothing runs beside this.

#include <fcntl.h>

#include <fstream>

#include "shm/segment.h"
#include "tests/support/matchers.h"

namespace elixir::shm {
namespace {

constexpr uint64_t kHugeBytes = 2ull << 20, kPages = 20;

uint64_t free_huge_pages() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t pages = 0;
  file >> pages;
  return pages;
}

// So many more huge pages while it lives, where this user may ask for them.
class MoreHugePages {
 public:
  explicit MoreHugePages(uint64_t pages) {
    std::ifstream(kSetting) >> before_;
    std::ofstream(kSetting) << before_ + pages;
  }
  ~MoreHugePages() { std::ofstream(kSetting) << before_; }
  MoreHugePages(const MoreHugePages&) = delete;

 private:
  static constexpr const char* kSetting = "/proc/sys/vm/nr_hugepages";
  uint64_t before_ = 0;
};

TEST(HugePages, AreTakenWhereTheyAreFreeAndGivenBack) {
  const MoreHugePages more(kPages);
  const uint64_t free_before = free_huge_pages();
  if (free_before < kPages) {
    GTEST_SKIP() << "no " << kPages << " huge pages to be had: " << free_before << " are free";
  }
  {
    // Not a multiple of 2 MiB: what is mapped must be, or it is never unmapped.
    constexpr uint64_t kBytes = (kPages - 1) * kHugeBytes + 4096;
    const Segment made = must(Segment::create("test", kBytes));
    EXPECT_EQ(made.page_bytes(), kHugeBytes);
    EXPECT_EQ(free_huge_pages(), free_before - kPages);
    const Segment seen = must(
        Segment::map(UniqueFd(::fcntl(made.fd(), F_DUPFD_CLOEXEC, 0)), kBytes, Access::kReadOnly));
    // More than is free: ordinary pages then.
    const Segment other = must(Segment::create("test", (free_before + 1) * kHugeBytes));
    EXPECT_NE(other.page_bytes(), kHugeBytes);
  }
  EXPECT_EQ(free_huge_pages(), free_before);
}

}  // namespace
}  // namespace elixir::shm
