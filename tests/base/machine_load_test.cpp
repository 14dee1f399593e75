#include "base/machine_load.h"

#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include "base/processors.h"

namespace elixir {
namespace {

TEST(MachineLoad, AQuarterOfTheProcessorsIsNotIdle) {
  EXPECT_TRUE((MachineLoad{.busy = 0, .processors = 1}).idle());
  EXPECT_TRUE((MachineLoad{.busy = 3.9, .processors = 16}).idle());
  EXPECT_FALSE((MachineLoad{.busy = 4, .processors = 16}).idle());
  EXPECT_FALSE((MachineLoad{.busy = 100, .processors = 1}).idle());
}

TEST(MachineLoad, BusyIsAllButIdleAndWaitingForDisksOfTheProcessorsAskedFor) {
  const char* const text =
      "cpu  1111 1111 1111 1111 1111 1111 1111 1111 1111 1111\n"
      "cpu0 100 20 30 4000 5000 6 7 8 900 1000\n"  // user nice system idle iowait irq softirq steal
      "cpu1 1 0 0 9 0 0 0 0 0 0\n"
      "cpu11 500 0 0 0 0 0 0 0 0 0\n"
      "intr 12 34\nctxt 99\n";
  EXPECT_DOUBLE_EQ(busy_seconds(text, {0}, 100), 1.71);
  EXPECT_DOUBLE_EQ(busy_seconds(text, {0, 1}, 100), 1.72);
  EXPECT_DOUBLE_EQ(busy_seconds(text, {7}, 100), 0);
  for (const char* const none : {"", "cpu", "cpu0", "cpu0 x", "no such file"}) {
    EXPECT_DOUBLE_EQ(busy_seconds(none, {0}, 100), 0) << none;
  }
}

// This process computes for so long, and so does no other.
void compute(double seconds) {
  timespec begin{}, now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  do {
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  } while (static_cast<double>(now.tv_sec - begin.tv_sec) +
               1e-9 * static_cast<double>(now.tv_nsec - begin.tv_nsec) <
           seconds);
}

// Whatever else the machine does, what is ours is taken off.
TEST(MachineLoad, WorkOfProcessesAlikeAndOfTheOneBesideIsNotOthers) {
  OthersLoad all(0), own(1), twice(2), beside(0, ::getpid());
  compute(0.3);
  const double all_busy = all.look().busy, own_busy = own.look().busy;
  EXPECT_GT(all_busy, own_busy);
  EXPECT_GT(all_busy, beside.look().busy);
  EXPECT_LE(twice.look().busy, own_busy);
}

TEST(MachineLoad, OfThisMachine) {
  const auto processors = static_cast<double>(usable_processors().size());
  EXPECT_EQ(load_of_last_minute().processors, processors);
  OthersLoad others;
  const MachineLoad load = others.look();
  EXPECT_EQ(load.processors, processors);
  EXPECT_GE(load.busy, 0);
}

}  // namespace
}  // namespace elixir
