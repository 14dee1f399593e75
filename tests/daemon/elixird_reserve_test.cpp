// Memory on its way to a session: what elixird does meanwhile, and what becomes of it when it
// cannot be had or nobody wants it any more.

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "daemon/fill.h"
#include "shm/parameter_table.h"
#include "tests/daemon/fake_job.h"
#include "tests/daemon/held_fill.h"
#include "tests/support/matchers.h"

namespace elixir::testing {
namespace {

constexpr const char* kNotPossible = "seccomp's notifications are not to be had";
constexpr uint64_t kNumel = (12 << 20) + 128 * 1024;  // its states end in a piece of their own

FakeModel large_model() { return make_model(ComputeType::kFp32, 1, 1, kNumel); }
FakeModel small_model() { return make_model(ComputeType::kFp32, 1, 1, 4096); }

// Of the large model's last piece, and of the last one of its gradients (and of its parameters).
uint64_t last_piece_bytes() { return large_model().shape.state_bytes() % daemon::kFillPieceBytes; }
uint64_t grads_piece_bytes() { return large_model().shape.grads_bytes() % daemon::kFillPieceBytes; }

auto attach_in_background(HeldFill& held, const std::string& job) {
  return std::async(std::launch::async, [job, folder = held.daemon().folder()] {
    return FakeJob::attach({.folder = folder, .name = job, .model = large_model()});
  });
}

std::unique_ptr<FakeJob> start_small(HeldFill& held, const std::string& job) {
  return must(
      FakeJob::start({.folder = held.daemon().folder(), .name = job, .model = small_model()}));
}

// Without waiting for elixird's answer.
std::unique_ptr<FakeTrainer> ask(HeldFill& held, const std::string& job, const FakeModel& model) {
  return must(FakeTrainer::ask({.folder = held.daemon().folder(),
                                .job = job,
                                .shape = model.shape,
                                .places = model.places}));
}

bool logs(HeldFill& held, const std::string& part) {
  return becomes_true([&] { return held.daemon().log().find(part) != std::string::npos; });
}

nlohmann::json jobs_of(HeldFill& held) {
  return nlohmann::json::parse(held.daemon().ask_status())["jobs"];
}

TEST(Reserving, SaysHowFarItIsAndHoldsUpNobody) {
  HeldFill held(last_piece_bytes());
  if (!held.possible()) GTEST_SKIP() << kNotPossible;
  const auto other = start_small(held, "other");

  auto attaching = attach_in_background(held, "large");
  ASSERT_TRUE(held.await());
  EXPECT_TRUE(other->step(1).ok());
  const auto second = start_small(held, "second");
  EXPECT_TRUE(second->step(1).ok());
  EXPECT_TRUE(logs(held, "event=reserving job='large'")) << held.daemon().log();
  for (const auto& entry : jobs_of(held)) {
    const bool large = entry["job"] == "large";
    EXPECT_EQ(entry["filling_bytes"] > 0, large) << entry;
    EXPECT_LE(entry["filling_bytes"], entry["need_bytes"]);
  }

  held.go_on();
  const auto job = must(attaching.get());
  EXPECT_TRUE(job->load().ok());
  EXPECT_TRUE(job->step(1).ok());
}

TEST(Reserving, AFailureEndsThatJobAloneAndGivesItsMemoryBack) {
  HeldFill held(last_piece_bytes());
  if (!held.possible()) GTEST_SKIP() << kNotPossible;
  const auto other = start_small(held, "other");
  auto attaching = attach_in_background(held, "large");
  ASSERT_TRUE(held.await());
  held.fail(ENOMEM);
  expect_refused(attaching.get().status(), Code::kResourceExhausted,
                 {"Cannot allocate memory", "end other programs", "raise the limit"});
  EXPECT_EQ(mapped_memfds(held.daemon().pid()), 5u);  // the other's
  EXPECT_TRUE(other->step(1).ok());

  auto again = attach_in_background(held, "large");
  ASSERT_TRUE(held.await());
  held.go_on();
  EXPECT_TRUE(again.get().ok());
}

// One thread, held at the gradients' last piece: without an end to the filling, it would be held
// once more at the parameters'.
TEST(Reserving, EndsSoonWhenTheTrainerIsGone) {
  HeldFill held(grads_piece_bytes(), {"--workers", "1"});
  if (!held.possible()) GTEST_SKIP() << kNotPossible;
  const auto trainer = ask(held, "job", large_model());
  ASSERT_TRUE(held.await());
  trainer->die();
  EXPECT_TRUE(logs(held, "event=lost"));
  // Answered once the event loop is done with the loss, of which the log is the beginning.
  EXPECT_NE(held.daemon().ask_status(), "");
  held.go_on();
  EXPECT_TRUE(logs(held, "event=job_over"));
  EXPECT_TRUE(becomes_true([&] { return mapped_memfds(held.daemon().pid()) == 0; }));
  EXPECT_TRUE(logs(held, "freed=0")) << held.daemon().log();
}

TEST(Reserving, AJobThatDoesNotFitBesideItWaitsForItsEndAndIsRefused) {
  const uint64_t job_bytes = large_model().shape.session_bytes();
  HeldFill held(last_piece_bytes(), {"--memory-limit", std::to_string(job_bytes * 3 / 2)});
  if (!held.possible()) GTEST_SKIP() << kNotPossible;
  auto first = attach_in_background(held, "first");
  ASSERT_TRUE(held.await());
  const auto second = ask(held, "second", large_model());
  const auto other = start_small(held, "other");  // tables are read one after another
  EXPECT_EQ(held.daemon().log().find("event=refuse"), std::string::npos) << "it does not wait";
  held.go_on();
  EXPECT_TRUE(first.get().ok());
  const auto packet = must(shm::receive_packet(second->attach_socket(), FakeTrainer::kDeadlineMs));
  const auto refusal = must(shm::decode_message<shm::Refusal>(packet.bytes));
  expect_refused(Status(static_cast<Code>(refusal.code), std::string(shm::get_text(refusal.text))),
                 Code::kResourceExhausted, {"memory_limit"});
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
  if (!held.possible()) GTEST_SKIP() << kNotPossible;
  const auto is_there = [&](const char* job) {
    const nlohmann::json jobs = jobs_of(held);
    return std::any_of(jobs.begin(), jobs.end(),
                       [&](const auto& entry) { return entry["job"] == job; });
  };
  const auto leaving = start_small(held, "leaving");
  const auto first = ask(held, "first", medium), second = ask(held, "second", medium);
  ASSERT_TRUE(held.await() && held.await());
  leaving->detach();
  ASSERT_TRUE(becomes_true([&] { return !is_there("leaving"); }));
  const auto next = ask(held, "next", small);
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
  if (!held.possible()) GTEST_SKIP() << kNotPossible;
  const auto other = start_small(held, "other");
  std::vector<std::unique_ptr<FakeTrainer>> trainers;
  for (int i = 0; i < kTables; ++i) {
    trainers.push_back(ask(held, fmt::format("table-{}", i), model));
  }
  ASSERT_TRUE(held.await());
  for (uint32_t step = 1; step <= 20; ++step) EXPECT_TRUE(other->step(step).ok());
  EXPECT_NE(held.daemon().ask_status(), "");
  EXPECT_EQ(held.daemon().log().find("event=attach job='table-"), std::string::npos);
  held.go_on();
  for (int i = 1; i < kTables; ++i) {
    ASSERT_TRUE(held.await()) << i;
    held.go_on();
  }
  EXPECT_TRUE(becomes_true([&] { return jobs_of(held).size() == kTables + 1; }))
      << held.daemon().log();
}

TEST(Reserving, ASignalWaitsForThePieceInHandAndASecondSignalForNothing) {
  for (const bool second : {false, true}) {
    HeldFill held(grads_piece_bytes(), {"--workers", "1"});
    if (!held.possible()) GTEST_SKIP() << kNotPossible;
    DaemonProcess& daemon = held.daemon();
    auto attaching = attach_in_background(held, "large");
    ASSERT_TRUE(held.await());
    daemon.signal(SIGTERM);
    ASSERT_TRUE(logs(held, "event=signal"));
    EXPECT_NE(daemon.ask_status(), "");  // it lives until the memory on its way is there
    second ? daemon.signal(SIGINT) : held.go_on();
    EXPECT_EQ(daemon.wait(), second ? 128 + SIGINT : 0) << daemon.log();
    const Status status = attaching.get().status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(second || status.code() == Code::kUnavailable) << status.message();
    for (const auto& entry : std::filesystem::directory_iterator(daemon.folder().path)) {
      EXPECT_FALSE(entry.is_socket()) << entry.path();
    }
  }
}

}  // namespace
}  // namespace elixir::testing
