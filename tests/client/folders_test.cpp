// Requests for folders through a session, against a real elixird. What becomes of them in a job:
// daemon/job_saves_test.cpp.

#include "client/session/folders.h"

#include <signal.h>

#include <filesystem>

#include "checkpoint/listing.h"
#include "tests/client/session_job.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

using testing::ask_to_save;
using testing::begin_job;
using testing::end_of;
using testing::save;
using testing::step;

class SessionFolders : public ::testing::Test {
 protected:
  Result<uint32_t> ask(Session& session, const std::string& name, uint32_t after_step) {
    return ask_to_save(session, folder_.path(), name, after_step);
  }

  testing::DaemonProcess daemon_{{"--no-bandwidth-probe"}};
  const TemporaryFolder folder_;
};

TEST_F(SessionFolders, ARefusedRequestLeavesTheSessionAsItWas) {
  const auto session = must(begin_job(daemon_, "job"));
  std::filesystem::create_directory(folder_.path("taken"));
  for (int i = 0; i < 10; ++i) {  // more than there are results
    EXPECT_EQ(ask(*session, "../out", 0).status().code(), Code::kInvalidArgument);
    // It was taken, and fails so soon that it may be over when the rank looks.
    const uint32_t taken = must(ask(*session, "taken", 0));
    EXPECT_EQ(end_of(*session, taken).code(), Code::kInvalidArgument);
    EXPECT_FALSE(session->folder_result(taken).refused);
  }
  EXPECT_EQ(ask(*session, std::string(300, 'a'), 0).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(step(*session, 1).ok());
  EXPECT_TRUE(save(*session, folder_.path(), 1).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_.path(checkpoints::step_name(1)) + "/elixir.json"));
}

TEST_F(SessionFolders, AWaitForARequestEndsWithElixird) {
  const auto session = must(begin_job(daemon_, "job"));
  EXPECT_FALSE(*session->folder_ended_within(1, 0));
  EXPECT_FALSE(*session->folder_ended_within(1, 0.1));
  daemon_.signal(SIGKILL);
  daemon_.wait();
  EXPECT_EQ(session->folder_ended_within(1, kPatienceS).status().code(), Code::kUnavailable);
  EXPECT_EQ(ask(*session, "gone", 0).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace elixir::test
