#include "checkpoint/listing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "checkpoint/folder_lock.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_folder.h"
#include "tests/checkpoint/saved.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/outcomes.h"
#include "tests/support/patience.h"

namespace elixir::checkpoints {
namespace {

using test::expect_refused;
using test::must;
namespace fs = std::filesystem;
using namespace ::elixir::checkpoints::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ListingTest : public SavedInFolder {
 protected:
  std::vector<ListedCheckpoint> list() { return must(list_checkpoints(folder_.path())); }
  uint32_t prune_to(const Keep& keep) { return must(prune(parent_.get(), keep)); }
  std::vector<uint64_t> steps() {
    std::vector<uint64_t> steps;
    for (const ListedCheckpoint& listed : list()) steps.push_back(listed.step);
    return steps;
  }
  std::string of(uint64_t step, const std::string& file = "") {
    return folder_.path(step_name(step)) + (file.empty() ? "" : "/" + file);
  }
};

TEST(StepName, EachStepHasOneName) {
  EXPECT_EQ(step_name(1000), "step-000001000");
  for (const uint64_t step :
       {uint64_t{0}, uint64_t{7}, uint64_t{999'999'999}, uint64_t{1'000'000'000}, UINT64_MAX}) {
    EXPECT_EQ(step_of_name(step_name(step)), step);
  }
  for (const char* const none :
       {"", "step-", "step-1", "step-0000000001", "step-00000000x", "step-00000000 ",
        "step--00000001", "step-+00000001", "step-18446744073709551616",
        "step-99999999999999999999", "Step-000000001", "step-000000001.tmp-x", "xstep-000000001"}) {
    EXPECT_FALSE(step_of_name(none).has_value()) << none;
  }
}

TEST_F(ListingTest, CheckpointsAreListedByStepWithTheirBytes) {
  for (const uint64_t step : {20, 3, 100}) save(step);
  folder_.write("notes.txt", "x");
  folder_.write("step-000000004.tmp-job/x", "x");
  folder_.write(".deleting-step-000000005/x", "x");
  EXPECT_THAT(steps(), ElementsAre(3, 20, 100));
  for (const ListedCheckpoint& listed : list()) {
    EXPECT_TRUE(listed.valid) << listed.why;
    EXPECT_EQ(listed.why, "");
    EXPECT_EQ(listed.path, of(listed.step));
    uint64_t bytes = 0;
    for (const char* const name : {kModelFile, kOptimizerFile, "config.json", "user/rank-0.bin"}) {
      bytes += text_of(name, listed.step).size();
    }
    EXPECT_EQ(listed.bytes, bytes);
  }
}

TEST_F(ListingTest, AFolderThatCannotBeReadIsSaid) {
  for (const std::string& path : {folder_.path("none"), folder_.write("file", "x")}) {
    expect_refused(list_checkpoints(path).status(), Code::kBadInput, {path});
    EXPECT_FALSE(latest_checkpoint(path).ok());
  }
}

// Each makes a whole checkpoint one that is not, and how it is said.
// What a folder of the manifest's name holds does not make its parent a checkpoint.
TEST_F(ListingTest, AManifestIsNoFolder) {
  save(1);
  EXPECT_TRUE(has_manifest(AT_FDCWD, of(1)));
  EXPECT_FALSE(has_manifest(parent_.get()));
  folder_.write("elixir.json/x", "x");
  EXPECT_FALSE(has_manifest(parent_.get()));
  EXPECT_FALSE(must(read_manifest(parent_.get())).has_value());
  fs::remove_all(folder_.path("elixir.json"));
  fs::create_symlink("nowhere", folder_.path("elixir.json"));
  EXPECT_TRUE(has_manifest(parent_.get())) << "be it damaged";
}

TEST_F(ListingTest, WhatIsNotWholeIsSaidInWords) {
  const auto change = [](const std::string& path, size_t at) {
    std::string text = contents(path);
    text.at(at) = text[at] == '1' ? '2' : '1';
    std::ofstream(path, std::ios::binary) << text;
  };
  const struct {
    std::function<void(const std::string& checkpoint)> damage;
    const char* why;
  } kWays[] = {
      {[](const std::string& path) { fs::remove(path + "/elixir.json"); }, "never finished"},
      {[](const std::string& path) { fs::resize_file(path + "/elixir.json", 0); }, "elixir.json: "},
      {[](const std::string& path) { fs::resize_file(path + "/elixir.json", 200); },
       "elixir.json: "},
      {[&](const std::string& path) { change(path + "/elixir.json", 40); }, "elixir.json: "},
      {[](const std::string& path) { fs::remove(path + "/" + kModelFile); }, "No such file"},
      {[](const std::string& path) { fs::remove_all(path + "/optimizer"); }, "folder is missing"},
      {[](const std::string& path) { fs::resize_file(path + "/" + kOptimizerFile, 10); },
       "optimizer-00001-of-00001.safetensors: it has 10 bytes, "},
      {[](const std::string& path) {
         fs::rename(path + "/config.json", path + "/other");
         fs::create_symlink("other", path + "/config.json");
       },
       "config.json is not an ordinary file"},
      {[](const std::string& path) {
         fs::rename(path + "/user", path + "/other");
         fs::create_symlink("other", path + "/user");
       },
       "folder is missing or invalid"},
      {[](const std::string& path) {
         fs::remove(path + "/elixir.json");
         EXPECT_EQ(::mkfifo((path + "/elixir.json").c_str(), 0600), 0);
       },
       "not an ordinary file"},
      {[&](const std::string& path) {
         fs::remove_all(path);
         fs::copy(of(1), path, fs::copy_options::recursive);
       },
       "of step 1, its name of another: it was renamed, or copied here; call it step-000000001"},
      {[](const std::string& path) {
         fs::rename(path, path + "-other");
         fs::create_symlink(path + "-other", path);
       },
       "symbolic link"},
      {[](const std::string& path) {
         fs::remove_all(path);
         std::ofstream(path) << "x";
       },
       "not a folder"},
  };
  save(1);
  uint64_t step = 10;
  for (const auto& [damage, why] : kWays) {
    save(++step);
    ASSERT_TRUE(list().back().valid);
    damage(of(step));
    const ListedCheckpoint listed = list().back();
    EXPECT_EQ(listed.step, step);
    EXPECT_FALSE(listed.valid) << why;
    EXPECT_THAT(listed.why, HasSubstr(why));
  }
  const Latest latest = must(latest_checkpoint(folder_.path()));
  EXPECT_EQ(latest.checkpoint.step, 1u);
  ASSERT_EQ(latest.passed_over.size(), std::size(kWays));
  EXPECT_EQ(latest.passed_over.front().step, step);  // newest first
  EXPECT_NE(latest.passed_over.front().why, "");
}

TEST_F(ListingTest, WithoutAWholeOneItIsSaidWhatThereIs) {
  EXPECT_THAT(latest_checkpoint(folder_.path()).status().message(), HasSubstr("no folder named"));
  save(5);
  fs::remove(of(5, kModelFile));
  expect_refused(latest_checkpoint(folder_.path()).status(), Code::kBadInput,
                 {of(5) + ": " + kModelFile});
}

// Of checkpoints that are there, some of them torn: how many go, and which stay.
struct Pruning {
  const char* what;
  std::vector<uint64_t> saved, torn;
  Keep keep;
  uint64_t up_to;
  uint32_t went;
  std::vector<uint64_t> left;
};
class Prunes : public ListingTest, public ::testing::WithParamInterface<Pruning> {};

const std::vector<uint64_t> kTen = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
INSTANTIATE_TEST_SUITE_P(
    All, Prunes,
    ::testing::ValuesIn(std::vector<Pruning>{
        {"TheLastTwoAndEachFourth", kTen, {}, {.last = 2, .every = 4}, 10, 6, {4, 8, 9, 10}},
        {"TheLastTwo", kTen, {}, {.last = 2}, 10, 8, {9, 10}},
        {"AllWithoutANumber", {1, 2, 3}, {}, {.every = 2}, 10, 0, {1, 2, 3}},
        {"AsManyAsThereAre", {1, 2, 3}, {}, {.last = 3}, 10, 0, {1, 2, 3}},
        {"MoreThanThereAre", {1, 2, 3}, {}, {.last = UINT32_MAX}, 10, 0, {1, 2, 3}},
        // What is not whole counts for nothing: neither as one of the last nor as one to remove.
        {"TheNewestWholeOne", {1, 2, 3, 4}, {1, 3, 4}, {.last = 1}, 10, 0, {1, 2, 3, 4}},
        {"TheNewestBehindTorn", {1, 2, 3, 4, 5}, {1, 3, 4}, {.last = 1}, 10, 1, {1, 3, 4, 5}},
        // What a run that went back saves; the other branch is left.
        {"TheOtherBranch", {4, 5, 6, 10}, {}, {.last = 1}, 6, 2, {6, 10}},
    }),
    [](const auto& info) { return std::string(info.param.what); });

TEST_P(Prunes, LeaveWhatIsToBeKeptAndWhatIsNotWhole) {
  const Pruning& of = GetParam();
  for (const uint64_t step : of.saved) save(step);
  for (const uint64_t step : of.torn) fs::remove(this->of(step, kModelFile));
  const uint32_t went = must(prune(parent_.get(), of.keep, of.up_to));
  EXPECT_EQ(went, of.went);
  EXPECT_EQ(steps(), of.left);
  for (const uint64_t step : of.left) {
    const bool torn = std::find(of.torn.begin(), of.torn.end(), step) != of.torn.end();
    EXPECT_EQ(is_whole(this->of(step), step), !torn) << step;
  }
}

// Whichever way its name lies, a renamed one is neither the latest nor one that goes.
TEST_F(ListingTest, ARenamedOneIsNeitherTheLatestNorGoes) {
  for (const uint64_t step : {1, 2, 3, 4}) save(step);
  fs::rename(of(4), of(9));
  fs::rename(of(1), of(0));
  EXPECT_EQ(latest_checkpoint(folder_.path())->checkpoint.path, of(3));
  EXPECT_EQ(prune_to({.last = 1}), 1u);
  EXPECT_THAT(steps(), ElementsAre(0, 3, 9));
  EXPECT_TRUE(is_whole(of(3), 3));
  fs::rename(of(9), of(4));  // as it is told
  EXPECT_EQ(latest_checkpoint(folder_.path())->checkpoint.path, of(4));
  EXPECT_EQ(prune_to({.last = 1}), 1u);
  EXPECT_THAT(steps(), ElementsAre(0, 4));
}

constexpr Health kGood, kNotFinite{.not_finite = 1}, kBadStep{.finite_step = false};

TEST_F(ListingTest, TheNewestGoodOneStaysHoweverManyOfADivergedRunComeBehindIt) {
  for (const uint64_t step : {1, 2}) save(step, kGood);
  for (const uint64_t step : {3, 4, 5}) save(step, step == 4 ? kBadStep : kNotFinite);
  EXPECT_EQ(newest_good(list())->step, 2u);
  EXPECT_EQ(prune_to({.last = 1}), 3u);
  EXPECT_THAT(steps(), ElementsAre(2, 5));
  EXPECT_EQ(prune_to({.last = 1}), 0u);
  save(6, kGood);  // which frees it
  EXPECT_EQ(prune_to({.last = 1}), 2u);
  EXPECT_THAT(steps(), ElementsAre(6));
}

// An older release wrote those of which nothing is known.
TEST_F(ListingTest, OnesOfWhichNothingIsKnownCountWhereNoneIsKnownToBeGood) {
  for (const uint64_t step : {1, 2}) save(step);
  for (const uint64_t step : {3, 4}) save(step, kNotFinite);
  EXPECT_EQ(newest_good(list())->step, 2u);
  EXPECT_EQ(prune_to({.last = 1}), 2u);
  EXPECT_THAT(steps(), ElementsAre(2, 4));
  save(5, kGood);
  save(6);
  save(7, kNotFinite);
  EXPECT_EQ(newest_good(list())->step, 5u);
  EXPECT_EQ(prune_to({.last = 1}), 3u);
  EXPECT_THAT(steps(), ElementsAre(5, 7));
}

TEST_F(ListingTest, AnotherBranchsAndDamagedOnesAreNotTheNewestGoodOne) {
  EXPECT_EQ(newest_good(list()), nullptr);
  for (const uint64_t step : {1, 2, 9}) save(step, kGood);
  for (const uint64_t step : {3, 4}) save(step, kNotFinite);
  fs::resize_file(of(2, "config.json"), 1);
  EXPECT_EQ(must(prune(parent_.get(), {.last = 1}, /*up_to=*/4)), 1u);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 4, 9));
}

TEST_F(ListingTest, OneIsLookedAtAloneWhateverItsName) {
  save(7);
  const uint64_t bytes = list().front().bytes;
  fs::rename(of(7), folder_.path("mine"));
  for (const char* const end : {"", "/", "//", "/."}) {
    const ListedCheckpoint listed = must(list_checkpoint(folder_.path("mine") + end));
    EXPECT_TRUE(listed.valid) << listed.why;
    EXPECT_EQ(listed.step, 7u);
    EXPECT_EQ(listed.bytes, bytes);
  }
  fs::resize_file(folder_.path("mine/config.json"), 1);
  const ListedCheckpoint cut = must(list_checkpoint(folder_.path("mine")));
  EXPECT_FALSE(cut.valid);
  EXPECT_EQ(cut.step, 7u);
  EXPECT_EQ(cut.bytes, bytes);
  EXPECT_THAT(cut.why, HasSubstr("config.json: it has 1 bytes"));
  const ListedCheckpoint none = must(list_checkpoint(of(8)));
  EXPECT_FALSE(none.valid);
  EXPECT_EQ(none.step, 8u);
  EXPECT_NE(none.why, "");
}

// A program without a descriptor left would pass over the newest one, and go on from an older.
TEST_F(ListingTest, WhoLacksDescriptorsCallsNoneInvalid) {
  for (const uint64_t step : {1, 2}) save(step);
  const std::string folder = of(1).substr(0, of(1).rfind('/'));
  size_t refused = 0;
  for (NoDescriptors none; refused < 20; none.free_one()) {
    const auto all = list_checkpoints(folder);
    const auto one = list_checkpoint(of(2));
    const auto latest = latest_checkpoint(folder);
    if (all.ok() && one.ok() && latest.ok()) break;
    ++refused;
    for (const Status& status : {all.status(), one.status(), latest.status()}) {
      if (!status.ok()) EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
    }
  }
  EXPECT_GE(refused, 3u);
  EXPECT_LT(refused, 20u);
  for (const ListedCheckpoint& listed : must(list_checkpoints(folder))) {
    EXPECT_TRUE(listed.valid) << listed.why;
  }
}

TEST_F(ListingTest, WhoHoldsAFileOfAnOldOneReadsIt) {
  for (const uint64_t step : {1, 2}) save(step);
  const UniqueFd open(::open(of(1, kOptimizerFile).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(open.valid());
  EXPECT_EQ(prune_to({.last = 1}), 1u);
  EXPECT_FALSE(fs::exists(of(1)));
  const std::string written = text_of(kOptimizerFile, 1);
  std::string read(written.size() + 1, '\0');
  EXPECT_EQ(::pread(open.get(), read.data(), read.size(), 0), std::ssize(written));
  read.pop_back();
  EXPECT_EQ(read, written);
}

// Of a removal that was killed, and of a step that was made once more since.
TEST_F(ListingTest, ARemovalThatWasCutOffIsNoHindrance) {
  for (const uint64_t step : {1, 2}) save(step);
  folder_.write(".deleting-step-000000001/optimizer/x", "x");
  EXPECT_EQ(prune_to({.last = 1}), 1u);
  EXPECT_THAT(names_of(folder_.path()), ElementsAre(step_name(2)));
}

// A file in the way of one, which nobody but its owner can judge.
TEST_F(ListingTest, OneThatCannotBeRemovedIsNoHindranceToTheOthersAndIsSaid) {
  for (const uint64_t step : {1, 2, 3, 4}) save(step);
  folder_.write(".deleting-step-000000002", "x");
  const Result<uint32_t> went = prune(parent_.get(), {.last = 1});
  ASSERT_FALSE(went.ok());
  EXPECT_THAT(went.status().message(), HasSubstr("step-000000002"));
  EXPECT_EQ(steps(), (std::vector<uint64_t>{2, 4}));
}

// Who holds the lock, and what lies there, from which nobody may conclude that elixird is saving.
TEST_F(ListingTest, OnlyASaveOfElixirdsIsWaitedFor) {
  UniqueFd held(must(lock_folder(parent_.get(), 0)));
  for (const char* const other : {"notes.tmp-1/x", "data.tmp-a-b/x", ".tmp-1-2/x", ".a.tmp-1-2/x",
                                  "step-000000001.tmp-import-7/x", "a.tmp-1-2b/x"}) {
    folder_.write(other, "x");
  }
  folder_.write("model.tmp-1-2", "a file");
  EXPECT_EQ(lock_folder(parent_.get(), 0).status().code(), Code::kAlreadyRunning);
  folder_.write("step-000000003.tmp-12-3/x", "x");
  ::testing::internal::CaptureStderr();
  std::thread ends([&] {
    struct stat log {};  // who waits has said so
    EXPECT_TRUE(
        test::eventually([&] { return ::fstat(STDERR_FILENO, &log) == 0 && log.st_size > 0; }));
    held.reset();
  });
  const Result<int> second = lock_folder(parent_.get(), 0);
  const std::string said = ::testing::internal::GetCapturedStderr();
  ends.join();
  ASSERT_TRUE(second.ok()) << second.status().message();
  ::close(*second);
  EXPECT_THAT(said, HasSubstr("step-000000003.tmp-12-3"));
  EXPECT_EQ(said.find("checkpoint_lock_waits"), said.rfind("checkpoint_lock_waits")) << said;
}

TEST_F(ListingTest, OneOfTwoOwnersHasTheFolder) {
  UniqueFd held(must(lock_folder(parent_.get(), 0)));
  expect_refused(lock_folder(parent_.get(), 0.05).status(), Code::kAlreadyRunning,
                 {folder_.path() + " belongs to another job"});
  // A copy of the descriptor holds it as well, as elixird has one while it writes.
  const UniqueFd copy(::fcntl(held.get(), F_DUPFD_CLOEXEC, 0));
  held.reset();
  EXPECT_FALSE(lock_folder(parent_.get(), 0).ok());
  EXPECT_TRUE(list().empty());  // it is no checkpoint
}

TEST_F(ListingTest, WhoWaitsSaysAtOnceForWhomAndHowLong) {
  UniqueFd held(must(lock_folder(parent_.get(), 0)));
  ::testing::internal::CaptureStderr();
  std::thread ends([&] {
    struct stat log {};
    EXPECT_TRUE(
        test::eventually([&] { return ::fstat(STDERR_FILENO, &log) == 0 && log.st_size > 0; }));
    held.reset();
  });
  const Result<int> second = lock_folder(parent_.get(), 3000);
  const std::string said = ::testing::internal::GetCapturedStderr();
  ends.join();
  ::close(must(second));
  EXPECT_THAT(said, HasSubstr(fmt::format("held_by=\"process {} on ", ::getpid())));
  EXPECT_THAT(said, HasSubstr("waits up to 3000 s"));
  EXPECT_EQ(said.find("checkpoint_lock_waits"), said.rfind("checkpoint_lock_waits")) << said;
}

TEST_F(ListingTest, WhoHoldsItIsSaidOfAnybodysText) {
  UniqueFd held(must(lock_folder(parent_.get(), 0)));
  EXPECT_THAT(holder_of(held.get()), HasSubstr(fmt::format("process {} on ", ::getpid())));
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("a job\n"), std::string("a job"),
        std::string("\nprocessing"), std::string(1000, '\n')}) {
    folder_.write(".elixir-lock", text);
    EXPECT_EQ(holder_of(held.get()), "another job") << text;
  }
  folder_.write(".elixir-lock", "job\nprocess 1 on \x1b[2J" + std::string(1000, 'x'));
  EXPECT_THAT(holder_of(held.get()), ::testing::StartsWith("process 1 on ?[2Jxxx"));
  EXPECT_LE(holder_of(held.get()).size(), 200u);
}

TEST_F(ListingTest, WhoWaitsHasItOnceTheOtherOneIsGone) {
  UniqueFd held(must(lock_folder(parent_.get(), 0)));
  EXPECT_FALSE(lock_folder(parent_.get(), 0).ok());
  std::thread other([&] { held.reset(); });
  const Result<int> lock = lock_folder(parent_.get(), test::kPatienceS);
  other.join();
  ::close(must(lock));
}

TEST_F(ListingTest, ALockThatIsALinkIsNotFollowed) {
  const std::string target = folder_.path("target");
  fs::create_symlink(target, folder_.path(".elixir-lock"));
  expect_refused(lock_folder(parent_.get(), 0).status(), Code::kInvalidArgument, {});
  EXPECT_FALSE(fs::exists(target));
}

}  // namespace
}  // namespace elixir::checkpoints
