#include "base/processors.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

void write_cache(const TemporaryFolder& root, int processor, int index, const std::string& level,
                 const std::string& size, const std::string& sharers) {
  const std::string cache = "sys/devices/system/cpu/cpu" + std::to_string(processor) +
                            "/cache/index" + std::to_string(index) + "/";
  root.write(cache + "level", level + "\n");
  root.write(cache + "size", size + "\n");
  root.write(cache + "shared_cpu_list", sharers + "\n");
}

TEST(Processors, CachesOfTheLastLevelCountOnceEach) {
  const TemporaryFolder root;
  for (int processor = 0; processor < 4; ++processor) {
    write_cache(root, processor, 0, "1", "32K", std::to_string(processor));
    write_cache(root, processor, 1, "2", "1024K", std::to_string(processor));
    write_cache(root, processor, 2, "3", "16384K", processor < 2 ? "0-1" : "2-3");
  }
  EXPECT_EQ(last_level_cache_bytes({0, 1, 2, 3}, root.path()), uint64_t{32} << 20);
  EXPECT_EQ(last_level_cache_bytes({1}, root.path()), uint64_t{16} << 20);
  EXPECT_EQ(last_level_cache_bytes({9}, root.path()), 0u);
  // Small cores without a third level beside others.
  write_cache(root, 9, 0, "2", "2048K", "9");
  EXPECT_EQ(last_level_cache_bytes({9}, root.path()), uint64_t{2} << 20);
  EXPECT_EQ(last_level_cache_bytes({9, 0}, root.path()), uint64_t{16} << 20);
  EXPECT_EQ(last_level_cache_bytes({0, 9}, root.path()), uint64_t{16} << 20);
}

TEST(Processors, OfThisMachine) {
  EXPECT_LT(last_level_cache_bytes(usable_processors()), uint64_t{1} << 40);
}

}  // namespace
}  // namespace elixir
