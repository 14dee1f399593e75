// Memory on its way to a session: what elixird does meanwhile, and what becomes of it when it
// cannot be had or nobody wants it any more.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "daemon/fill.h"
#include "shm/parameter_table.h"
#include "tests/daemon/fake_job.h"
#include "tests/daemon/held_fill.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kNumel = (12 << 20) + 128 * 1024;  // its states end in a piece of their own

FakeModel large_model() { return make_model(ComputeType::kFp32, 1, 1, kNumel); }
FakeModel small_model() { return make_model(ComputeType::kFp32, 1, 1, 4096); }

// Of the large model's last piece, and of the last one of its gradients (and of its parameters).
uint64_t last_piece_bytes() { return large_model().shape.state_bytes() % daemon::kFillPieceBytes; }
uint64_t grads_piece_bytes() { return large_model().shape.grads_bytes() % daemon::kFillPieceBytes; }

auto attach_in_background(const FakeJob::Options& options) {
  return std::async(std::launch::async, [options] { return FakeJob::attach(options); });
}

TEST(Reserving, SaysHowFarItIsAndHoldsUpNobody) {
  HeldFill held(last_piece_bytes());
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  const shm::RuntimeFolder folder = held.daemon().folder();
  auto other = FakeJob::start({.folder = folder, .name = "other", .model = small_model()});
  ASSERT_TRUE(other.ok()) << other.status().message();

  auto attaching =
      attach_in_background({.folder = folder, .name = "large", .model = large_model()});
  ASSERT_TRUE(held.await());
  EXPECT_TRUE((*other)->step(1).ok());
  auto second = FakeJob::start({.folder = folder, .name = "second", .model = small_model()});
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE((*second)->step(1).ok());
  EXPECT_TRUE(becomes_true([&] {
    return held.daemon().log().find("event=reserving job='large'") != std::string::npos;
  })) << held.daemon().log();
  const auto status = nlohmann::json::parse(held.daemon().ask_status());
  for (const auto& entry : status["jobs"]) {
    const bool large = entry["job"] == "large";
    EXPECT_EQ(entry["filling_bytes"] > 0, large) << entry;
    EXPECT_LE(entry["filling_bytes"], entry["need_bytes"]);
  }

  held.go_on();
  auto job = attaching.get();
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_TRUE((*job)->load().ok());
  EXPECT_TRUE((*job)->step(1).ok());
}

TEST(Reserving, AFailureEndsThatJobAloneAndGivesItsMemoryBack) {
  HeldFill held(last_piece_bytes());
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  const shm::RuntimeFolder folder = held.daemon().folder();
  auto other = FakeJob::start({.folder = folder, .name = "other", .model = small_model()});
  ASSERT_TRUE(other.ok()) << other.status().message();
  const FakeJob::Options large{.folder = folder, .name = "large", .model = large_model()};

  auto attaching = attach_in_background(large);
  ASSERT_TRUE(held.await());
  held.fail(ENOMEM);
  const Status status = attaching.get().status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  for (const char* part : {"Cannot allocate memory", "end other programs", "raise the limit"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_EQ(mapped_memfds(held.daemon().pid()), 5u);  // the other's
  EXPECT_TRUE((*other)->step(1).ok());

  auto again = attach_in_background(large);
  ASSERT_TRUE(held.await());
  held.go_on();
  EXPECT_TRUE(again.get().ok());
}

// One thread, held at the gradients' last piece: without an end to the filling, it would be held
// once more at the parameters'.
TEST(Reserving, EndsSoonWhenTheTrainerIsGone) {
  HeldFill held(grads_piece_bytes(), {"--workers", "1"});
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  const FakeModel model = large_model();
  auto trainer = FakeTrainer::ask(
      {.folder = held.daemon().folder(), .shape = model.shape, .places = model.places});
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  ASSERT_TRUE(held.await());
  (*trainer)->die();
  EXPECT_TRUE(
      becomes_true([&] { return held.daemon().log().find("event=lost") != std::string::npos; }));
  // Answered once the event loop is done with the loss, of which the log is the beginning.
  EXPECT_NE(held.daemon().ask_status(), "");
  held.go_on();
  EXPECT_TRUE(becomes_true([&] {
    return held.daemon().log().find("event=job_over") != std::string::npos &&
           mapped_memfds(held.daemon().pid()) == 0;
  })) << held.daemon().log();
  EXPECT_NE(held.daemon().log().find("freed=0"), std::string::npos) << held.daemon().log();
}

TEST(Reserving, AJobThatDoesNotFitBesideItWaitsForItsEndAndIsRefused) {
  const uint64_t job_bytes = large_model().shape.session_bytes();
  HeldFill held(last_piece_bytes(), {"--memory-limit", std::to_string(job_bytes * 3 / 2)});
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  const shm::RuntimeFolder folder = held.daemon().folder();
  auto first = attach_in_background({.folder = folder, .name = "first", .model = large_model()});
  ASSERT_TRUE(held.await());
  auto second = attach_in_background({.folder = folder, .name = "second", .model = large_model()});
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  held.go_on();
  EXPECT_TRUE(first.get().ok());
  const Status refused = second.get().status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("memory_limit"), std::string::npos) << refused.message();
}

// What a job that is over has still, until the system has it back, is nobody else's: here both
// background threads are busy, so that it stays.
TEST(Reserving, MemoryThatIsBeingGivenBackIsNotPromisedAgain) {
  const FakeModel small = small_model();
  const FakeModel medium = make_model(ComputeType::kFp32, 1, 1, 128 * 1024);
  // And what the jobs take of elixird's own heap, which is less than another small one.
  const uint64_t limit_bytes =
      3 * small.shape.session_bytes() / 2 + 2 * medium.shape.session_bytes();
  HeldFill held(medium.shape.state_bytes(),
                {"--workers", "1", "--memory-limit", std::to_string(limit_bytes)});
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  const shm::RuntimeFolder folder = held.daemon().folder();
  const auto ask = [&](const char* job, const FakeModel& model) {
    auto trainer = FakeTrainer::ask(
        {.folder = folder, .job = job, .shape = model.shape, .places = model.places});
    EXPECT_TRUE(trainer.ok()) << trainer.status().message();
    return std::move(*trainer);
  };
  const auto is_there = [&](const char* job) {
    const auto status = nlohmann::json::parse(held.daemon().ask_status());
    for (const auto& entry : status["jobs"]) {
      if (entry["job"] == job) return true;
    }
    return false;
  };
  auto leaving = FakeJob::start({.folder = folder, .name = "leaving", .model = small});
  ASSERT_TRUE(leaving.ok()) << leaving.status().message();
  const auto first = ask("first", medium), second = ask("second", medium);
  ASSERT_TRUE(held.await() && held.await());
  (*leaving)->detach();
  ASSERT_TRUE(becomes_true([&] { return !is_there("leaving"); }));
  const auto next = ask("next", small);
  // Each answer is of a later round of the event loop, which accepts, reads, and decides.
  for (int round = 0; round < 4; ++round) EXPECT_FALSE(is_there("next")) << "promised twice";
}

// A table is read, and its checksum made, beside the event loop: the first of twenty is held here,
// and the others stand behind it.
TEST(Reserving, TablesThatAreReadHoldNobodyUp) {
  constexpr int kTables = 20;
  const FakeModel model = make_model(ComputeType::kFp32, 1, 7, 4096);
  const uint64_t table_bytes = shm::encode_table(model.places).size();
  ASSERT_NE(table_bytes, shm::encode_table(small_model().places).size());
  HeldFill held(HeldCall::reading_table(table_bytes));
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  const shm::RuntimeFolder folder = held.daemon().folder();
  auto other = FakeJob::start({.folder = folder, .name = "other", .model = small_model()});
  ASSERT_TRUE(other.ok()) << other.status().message();
  std::vector<std::unique_ptr<FakeTrainer>> trainers;
  for (int i = 0; i < kTables; ++i) {
    auto trainer = FakeTrainer::ask({.folder = folder,
                                     .job = fmt::format("table-{}", i),
                                     .shape = model.shape,
                                     .places = model.places});
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    trainers.push_back(std::move(*trainer));
  }
  ASSERT_TRUE(held.await());
  for (uint32_t step = 1; step <= 20; ++step) EXPECT_TRUE((*other)->step(step).ok());
  EXPECT_NE(held.daemon().ask_status(), "");
  EXPECT_EQ(held.daemon().log().find("event=attach job='table-"), std::string::npos);
  held.go_on();
  for (int i = 1; i < kTables; ++i) {
    ASSERT_TRUE(held.await()) << i;
    held.go_on();
  }
  EXPECT_TRUE(becomes_true([&] {
    return nlohmann::json::parse(held.daemon().ask_status())["jobs"].size() == kTables + 1;
  })) << held.daemon().log();
}

TEST(Reserving, ASecondSignalWaitsForNothing) {
  HeldFill held(grads_piece_bytes(), {"--workers", "1"});
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  auto attaching = attach_in_background(
      {.folder = held.daemon().folder(), .name = "large", .model = large_model()});
  ASSERT_TRUE(held.await());
  held.daemon().signal(SIGTERM);
  ASSERT_TRUE(
      becomes_true([&] { return held.daemon().log().find("event=signal") != std::string::npos; }));
  EXPECT_NE(held.daemon().ask_status(), "");  // it lives until the memory on its way is there
  held.daemon().signal(SIGINT);
  EXPECT_EQ(held.daemon().wait(), 128 + SIGINT) << held.daemon().log();
  EXPECT_FALSE(attaching.get().ok());
  for (const auto& entry : std::filesystem::directory_iterator(held.daemon().folder().path)) {
    EXPECT_FALSE(entry.is_socket()) << entry.path();
  }
}

TEST(Reserving, IsNotInTheWayOfTheEnd) {
  HeldFill held(grads_piece_bytes(), {"--workers", "1"});
  if (!held.possible()) GTEST_SKIP() << "seccomp's notifications are not to be had";
  auto attaching = attach_in_background(
      {.folder = held.daemon().folder(), .name = "large", .model = large_model()});
  ASSERT_TRUE(held.await());
  held.daemon().signal(SIGTERM);
  EXPECT_TRUE(
      becomes_true([&] { return held.daemon().log().find("event=signal") != std::string::npos; }));
  held.go_on();
  EXPECT_EQ(held.daemon().wait(), 0) << held.daemon().log();
  EXPECT_EQ(attaching.get().status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace elixir::testing
