#include "models/save_asks.h"

#include <gtest/gtest.h>

namespace elixir {
namespace {

StepOutcome outcome(uint32_t step, bool save, bool stop = false) {
  StepOutcome heard;
  heard.step = step;
  heard.save_asked = save;
  heard.stop_asked = stop;
  return heard;
}

TEST(SaveAsks, OneSignalOfRanksThatTookItInTwoStepsIsOneSave) {
  SaveAsks asks;
  asks.hear(outcome(3, false));
  EXPECT_FALSE(asks.due());
  asks.hear(outcome(4, true));
  EXPECT_TRUE(asks.due());
  EXPECT_FALSE(asks.take_stop());
  EXPECT_FALSE(asks.due());
  asks.hear(outcome(5, true));  // of a rank that had not heard of step 4
  EXPECT_FALSE(asks.due());
  asks.hear(outcome(6, true));  // nobody asks without having heard of step 4
  EXPECT_TRUE(asks.due());
}

TEST(SaveAsks, BothBeforeItIsBegunAreOneSaveToo) {
  SaveAsks asks;
  asks.hear(outcome(4, true, true));
  asks.hear(outcome(5, true, true));
  EXPECT_TRUE(asks.take_stop());
  EXPECT_FALSE(asks.due());
}

TEST(SaveAsks, AStopIsNotLostToASaveOfAnotherCause) {
  SaveAsks asks;
  asks.hear(outcome(4, true));  // --save-minutes
  EXPECT_FALSE(asks.take_stop());
  asks.hear(outcome(5, true, true));
  EXPECT_TRUE(asks.due());
  EXPECT_TRUE(asks.take_stop());
  EXPECT_FALSE(asks.take_stop());
}

TEST(SaveAsks, TheFirstStepOfARunMayAsk) {
  SaveAsks asks;
  asks.hear(outcome(1, true));
  EXPECT_TRUE(asks.due());
}

}  // namespace
}  // namespace elixir
