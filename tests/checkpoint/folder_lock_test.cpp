#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "checkpoint/listing.h"
#include "tests/support/outcomes.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::checkpoints {
namespace {

using test::must;
using ::testing::HasSubstr;

class FolderLockTest : public ::testing::Test {
 protected:
  Status await(const std::string& job, double timeout_s = 0.02) const {
    return await_holder(fd_.get(), job, timeout_s);
  }

  const TemporaryFolder folder_;
  const UniqueFd fd_{::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
};

TEST_F(FolderLockTest, IsOneForAllOfAProcess) {
  Result<HeldLock> first = hold_folder(fd_.get(), 0), second = hold_folder(fd_.get(), 0);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  first->reset();
  EXPECT_FALSE(lock_folder(fd_.get(), 0).ok());
  second->reset();
  const int anothers = must(lock_folder(fd_.get(), 0));
  EXPECT_EQ(hold_folder(fd_.get(), 0).status().code(), Code::kAlreadyRunning);
  ::close(anothers);
}

TEST_F(FolderLockTest, ItsHolderIsKnownByNameWhileItHolds) {
  EXPECT_EQ(await("a job").code(), Code::kTimedOut);
  const auto hold_as = [&](const std::string& job) {
    Result<HeldLock> held = hold_folder(fd_.get(), 0);
    EXPECT_TRUE(held.ok() && write_holder((*held)->get(), job).ok());
    return *held;
  };
  HeldLock held = hold_as("the job before, of a long name");
  held.reset();
  held = hold_as("a job");
  EXPECT_TRUE(await("a job").ok());
  for (const char* other : {"a", "a job2", "", "the job before, of a long name"}) {
    EXPECT_THAT(await(other).message(), HasSubstr(folder_.path())) << other;
  }
  held.reset();
  EXPECT_EQ(await("a job").code(), Code::kTimedOut);
  std::thread rank_0([&, waiter = ::gettid()] {
    EXPECT_TRUE(test::eventually([waiter] { return test::asleep(waiter); }));
    held = hold_as("a job");
  });
  EXPECT_TRUE(await("a job", /*timeout_s=*/60).ok());
  rank_0.join();
}

}  // namespace
}  // namespace elixir::checkpoints
