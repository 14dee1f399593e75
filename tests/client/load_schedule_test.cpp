#include "client/plan/load_schedule.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace elixir {
namespace {

using Task = LoadSchedule::Task;

std::vector<Task> take_all(LoadSchedule& schedule) {
  std::vector<Task> tasks;
  while (const std::optional<Task> task = schedule.next()) tasks.push_back(*task);
  return tasks;
}

TEST(LoadSchedule, LoadsComeBeforeDraws) {
  LoadSchedule schedule({1, 1, 1}, 3);
  schedule.done(*schedule.next());
  schedule.handed_out(0);
  const std::optional<Task> task = schedule.next();
  ASSERT_TRUE(task.has_value());
  EXPECT_EQ(task->kind, Task::Kind::kLoad);
}

TEST(LoadScheduleDeathTest, NothingIsHandedOutBeforeItsTurn) {
  LoadSchedule schedule({1, 1}, 2);
  EXPECT_DEATH(schedule.handed_out(0), "before its turn");
  for (const Task& task : take_all(schedule)) schedule.done(task);
  EXPECT_DEATH(schedule.handed_out(1), "before its turn");
}

// Threads that take and finish tasks in any order come to the end, each task is given once, and a
// buffer holds one position at a time.
TEST(LoadSchedule, EveryOrderEndsAndKeepsBuffersApart) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const uint32_t n = random() % 12, window = 1 + random() % 4;
    std::vector<uint32_t> parts(n);
    for (uint32_t& count : parts) count = 1 + random() % 3;
    LoadSchedule schedule(parts, window);
    std::vector<Task> in_hand;
    std::multiset<uint32_t> given;
    uint32_t handed_out = 0, loaded = 0;
    std::vector<int> owner(window, -1);
    while (!schedule.over()) {
      if (handed_out < n && schedule.drawn(handed_out) && random() % 2 == 0) {
        schedule.handed_out(handed_out++);
      }
      if (const std::optional<Task> task = schedule.next()) {
        in_hand.push_back(*task);
        given.insert(task->position);
        int& buffer = owner[task->position % window];
        EXPECT_TRUE(buffer == -1 || buffer == static_cast<int>(task->position));
        buffer = static_cast<int>(task->position);
      }
      if (in_hand.empty() || random() % 3 == 0) continue;
      const size_t one = random() % in_hand.size();
      const Task task = in_hand[one];
      in_hand.erase(in_hand.begin() + static_cast<ptrdiff_t>(one));
      if (task.kind == Task::Kind::kLoad) {
        owner[task.position % window] = -1;
        ++loaded;
      }
      schedule.done(task);
    }
    EXPECT_EQ(loaded, n);
    for (uint32_t p = 0; p < n; ++p) EXPECT_EQ(given.count(p), parts[p] + 1);
  }
}

}  // namespace
}  // namespace elixir
