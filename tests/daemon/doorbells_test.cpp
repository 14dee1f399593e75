#include "daemon/doorbells.h"

#include <gtest/gtest.h>

namespace elixir::daemon {
namespace {

TEST(Doorbells, OneThatIsLateIsLostUntilItRings) {
  Doorbells doorbells(2, 3);
  doorbells.found_post(1, 4);
  doorbells.found_grads(0, 2);
  doorbells.begin_tick();
  EXPECT_EQ(doorbells.lost(), 2u);
  doorbells.rang_post(1, 4);
  doorbells.rang_grads(0, 2);
  EXPECT_EQ(doorbells.lost(), 0u);
}

// As a rule where elixird is busy: the tick was quicker.
TEST(Doorbells, OneThatRingsBeforeTheNextTickIsNotLost) {
  Doorbells doorbells(2, 3);
  doorbells.begin_tick();
  doorbells.found_post(1, 4);
  doorbells.found_grads(0, 2);
  EXPECT_EQ(doorbells.lost(), 0u);
  doorbells.rang_post(1, 4);
  doorbells.begin_tick();
  EXPECT_EQ(doorbells.lost(), 1u);
  doorbells.found_grads(1, 2);  // is no reason to keep the one that rings now
  doorbells.rang_grads(0, 2);
  doorbells.rang_grads(1, 2);
  EXPECT_EQ(doorbells.lost(), 0u);
}

TEST(Doorbells, AnothersSaysNothingOfIt) {
  Doorbells doorbells(2, 3);
  doorbells.found_post(1, 4);
  doorbells.found_grads(0, 2);
  doorbells.rang_post(0, 4);
  doorbells.rang_post(1, 3);
  doorbells.rang_post(1, 5);
  doorbells.rang_post(1, 4 + shm::kStepRing);
  doorbells.rang_grads(0, 1);
  doorbells.rang_grads(1, 2);
  doorbells.begin_tick();
  EXPECT_EQ(doorbells.lost(), 2u);
}

TEST(Doorbells, RingingForNothingCountsNothing) {
  Doorbells doorbells(1, 1);
  for (const uint32_t step : {0u, 1u, UINT32_MAX}) doorbells.rang_post(0, step);
  doorbells.rang_grads(0, 0);
  EXPECT_EQ(doorbells.lost(), 0u);
  doorbells.found_post(0, 1);
  doorbells.rang_post(0, 1);
  doorbells.rang_post(0, 1);
  doorbells.begin_tick();
  EXPECT_EQ(doorbells.lost(), 0u);
}

TEST(Doorbells, ThoseThatNeverRingStay) {
  Doorbells doorbells(1, 1);
  for (uint32_t step = 1; step <= 20; ++step) doorbells.found_post(0, step);
  doorbells.begin_tick();
  EXPECT_EQ(doorbells.lost(), 20u);
  doorbells.rang_post(0, 1);  // so late that nobody knows it any more
  EXPECT_EQ(doorbells.lost(), 20u);
}

}  // namespace
}  // namespace elixir::daemon
