// A save over an older checkpoint, then the removal of the oldest, ended or failed at each of its
// calls in turn: what is there afterwards is whole, and is found.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>

#include "base/log.h"
#include "checkpoint/listing.h"
#include "checkpoint/new_folder.h"
#include "tests/checkpoint/crashing_calls.h"
#include "tests/checkpoint/saved.h"
#include "tests/support/every_case.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;
using namespace ::elixir::checkpoints::testing;
using ::testing::_;

constexpr uint64_t kOldest = 1, kOlder = 2, kNew = 3, kNext = 4;
constexpr int kNotPruned = 50;  // exit codes beside those of Code
constexpr int kSyncedAgain = 51;
constexpr int kNothingFailed = 52;

using Save = std::function<Status(int parent, uint64_t step)>;
Status save(int parent, uint64_t step) { return save_step(parent, step); }

// Without the folder's other name, and with the manifest before what it promises.
Status save_manifest_first(int parent, uint64_t step) {
  const std::string name = step_name(step);
  if (::mkdirat(parent, name.c_str(), 0777) != 0) return errno_status(Code::kInternal, name);
  const UniqueFd folder(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const char* const subfolder : {"optimizer", "user"}) {
    if (::mkdirat(folder.get(), subfolder, 0777) != 0) return errno_status(Code::kInternal, name);
  }
  std::vector<std::pair<std::string, std::string>> files;
  Manifest manifest;
  manifest.step = step;
  for (const char* const file : {kModelFile, kOptimizerFile, "config.json", "user/rank-0.bin"}) {
    files.emplace_back(file, text_of(file, step));
    manifest.files.push_back(described(file, files.back().second));
  }
  files.emplace_back(kManifestName, encode_manifest(manifest));
  std::vector<UniqueFd> open;
  for (const auto& [file, text] : files) {
    open.emplace_back(
        ::openat(folder.get(), file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (::fallocate(open.back().get(), 0, 0, std::ssize(text)) != 0) {
      return errno_status(Code::kInternal, file);
    }
  }
  for (size_t i = files.size(); i-- > 0;) {
    ELIXIR_RETURN_IF_ERROR(write_all(open[i].get(), as_bytes(files[i].second), 0));
    if (::fsync(open[i].get()) != 0) return errno_status(Code::kInternal, "fsync");
  }
  return Status();
}

class CrashTest : public ::testing::Test {
 protected:
  CrashTest() {
    const UniqueFd parent = open_folder(before_.path());
    for (const uint64_t step : {kOldest, kOlder}) EXPECT_TRUE(save_step(parent.get(), step).ok());
    before_.write("step-000000009.tmp-killed/optimizer/x", "left over");
  }

  // A new folder as it is before the save.
  void begin() {
    fs::remove_all(folder());
    fs::copy(before_.path(), folder(), fs::copy_options::recursive);
  }
  std::string folder() const { return work_.path("run"); }
  std::string of(uint64_t step) const { return folder() + "/" + step_name(step); }

  // What a job does: the lock, the save, and the removal of what is not kept. An exit code.
  int run(const Save& save) const {
    const UniqueFd parent(::open(folder().c_str(), parent_flags_ | O_DIRECTORY | O_CLOEXEC));
    const Result<int> lock = lock_folder(parent.get(), 0);
    if (!lock.ok()) return lock.status().exit_code();
    const UniqueFd held(*lock);
    const Status saved = save(parent.get(), kNew);
    if (!saved.ok()) return saved.exit_code();
    return prune(parent.get(), keep_).ok() ? 0 : kNotPruned;
  }

  // In a child, which may end in it.
  int run_under(const CallPlan& plan, const Save& save) const {
    const pid_t child = ::fork();
    if (child == 0) {
      init_log("elixir", LogLevel::kError);  // what cannot be removed is said each time
      arm(plan);
      const int code = run(save);
      const CallsMade made = disarm();
      // It was over before the power went: what it said to be there must stay.
      if (plan.what == CallPlan::At::kCrash) crash(plan.loss);
      if (made.synced_again) ::_exit(kSyncedAgain);
      ::_exit(made.failed == 0 ? kNothingFailed : code);
    }
    int state = 0;
    EXPECT_EQ(::waitpid(child, &state, 0), child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }

  uint64_t calls_of(const Save& save, bool plain) {
    begin();
    arm({.plain = plain});
    EXPECT_EQ(run(save), 0);
    return disarm().calls;
  }

  // "" where all is as promised: the newest is found and whole, as is each that is listed.
  std::string fault() const {
    const Result<std::vector<ListedCheckpoint>> all = list_checkpoints(folder());
    if (!all.ok()) return all.status().message();
    for (const ListedCheckpoint& listed : *all) {
      if (!listed.valid) return "listed and not whole: " + listed.path + ": " + listed.why;
      if (!is_whole(listed.path, listed.step)) return "torn: " + listed.path;
    }
    if (!is_whole(of(kOlder), kOlder)) return "the older one is gone";
    const Result<Latest> latest = latest_checkpoint(folder());
    if (!latest.ok()) return latest.status().message();
    return latest->checkpoint.step >= kOlder ? "" : "an old one is the latest";
  }

  // The next save finds nothing that hinders it, and leaves nothing of those before.
  std::string fault_of_next() const {
    const UniqueFd parent = open_folder(folder());
    const Status saved = save_step(parent.get(), kNext, "next");
    if (!saved.ok()) return saved.message();
    for (const std::string& name : names_of(folder())) {
      if (!step_of_name(name)) return "left over: " + name;
    }
    return is_whole(of(kNext), kNext) ? "" : "the next one is torn";
  }

  // What may not be, by the call at which the crash left it, from 1.
  std::map<uint64_t, std::string> faults(const Save& save, CallPlan plan) {
    plan.what = CallPlan::At::kCrash;
    const uint64_t calls = calls_of(save, plan.plain);
    std::map<uint64_t, std::string> faults;
    for (plan.at = 1; plan.at <= calls + 1; ++plan.at) {
      begin();
      const int code = run_under(plan, save);
      std::string found = code == kCrashed ? fault() : "exit code " + std::to_string(code);
      if (found.empty() && plan.at > calls && !is_whole(of(kNew), kNew)) found = "it is gone";
      if (found.empty()) found = fault_of_next();
      if (!found.empty()) faults[plan.at] = found;
    }
    return faults;
  }

  Keep keep_ = {.last = 2};
  int parent_flags_ = O_RDONLY;
  const TemporaryFolder before_, work_;
};

TEST_F(CrashTest, TheSaveMakesAllTheCallsThatAreCounted) {
  EXPECT_GT(calls_of(save, false), 60u);
  EXPECT_EQ(fault(), "");
  EXPECT_TRUE(is_whole(of(kNew), kNew));
  EXPECT_FALSE(fs::exists(of(kOldest)));
}

// Whatever a file system says where it cannot sync a folder. A disk that fails is no such one.
TEST_F(CrashTest, AFolderThatCannotBeSyncedIsNoFailedSave) {
  for (const int failure : {EINVAL, EOPNOTSUPP, ENOSYS, EBADF, EIO}) {
    begin();
    arm({.plain = true, .sync_folder_failure = failure});
    EXPECT_EQ(run(save) == 0, failure != EIO) << failure;
    EXPECT_GT(disarm().calls, 0u);
    EXPECT_EQ(fault(), "");
  }
}

TEST_F(CrashTest, KilledAtAnyCallTheOlderOneIsThereAndTheNewOneWholeOrNot) {
  for (const bool plain : {false, true}) {
    EXPECT_THAT(faults(save, {.loss = Loss::kNothing, .plain = plain}), IsEmpty());
  }
}

TEST_F(CrashTest, WithoutPowerAtAnyCallTheOlderOneIsThereAndTheNewOneWholeOrNot) {
  for (const Loss loss : {Loss::kData, Loss::kAll}) {
    EXPECT_THAT(faults(save, {.loss = loss}), IsEmpty());
  }
  EXPECT_THAT(faults(save, {.loss = Loss::kData, .plain = true}), IsEmpty());
}

// Through a descriptor that cannot sync it.
TEST_F(CrashTest, WithoutPowerItIsTheSameThroughADescriptorThatOnlyNamesTheParent) {
  parent_flags_ = O_PATH;
  EXPECT_THAT(faults(save, {.loss = Loss::kAll}), IsEmpty());
}

// Of itself, and not because what comes after it syncs the folder once more.
TEST_F(CrashTest, WhatWasSaidToBeThereIsThereWithoutPower) {
  keep_ = {};
  EXPECT_THAT(faults(save, {.loss = Loss::kAll}), IsEmpty());
}

// The controls: what would be wrong is seen.
TEST_F(CrashTest, AManifestThatIsWrittenFirstIsSeenToTear) {
  EXPECT_THAT(faults(save_manifest_first, {.loss = Loss::kNothing}),
              Contains(Pair(_, HasSubstr("torn: "))));
  // It is the order alone: undisturbed it is whole.
  begin();
  EXPECT_EQ(run(save_manifest_first), 0);
  EXPECT_EQ(fault(), "");
  EXPECT_TRUE(is_whole(of(kNew), kNew));
}
TEST_F(CrashTest, FilesThatAreNotSyncedAreSeenToTear) {
  EXPECT_THAT(faults(save, {.loss = Loss::kData, .lying_fsync = true}),
              Contains(Pair(_, HasSubstr("torn: "))));
}

TEST_F(CrashTest, WhateverCallFailsTheOlderOneIsThereAndItIsSaid) {
  const uint64_t calls = calls_of(save, false);
  for (const int failure : {ENOSPC, EDQUOT, EIO}) {
    const Code code = failure == EIO ? Code::kInternal : Code::kResourceExhausted;
    for (const bool lasting : {false, true}) {
      if (failure == EDQUOT && lasting) continue;  // as ENOSPC
      const bool sampled = failure == ENOSPC || (failure == EIO && !lasting);
      if (!sampled && !every_case()) continue;
      for (uint64_t at = 1; at <= calls; ++at) {
        SCOPED_TRACE(::testing::Message() << "call " << at << ", errno " << failure << lasting);
        begin();
        const int exit_code = run_under(
            {.what = CallPlan::At::kFail, .at = at, .failure = failure, .lasting = lasting}, save);
        EXPECT_TRUE(exit_code == 0 || exit_code == kNotPruned ||
                    exit_code == static_cast<int>(code))
            << exit_code;
        EXPECT_EQ(fault(), "");
        if (exit_code == 0 || exit_code == kNotPruned) {
          EXPECT_TRUE(is_whole(of(kNew), kNew));
        }
        EXPECT_EQ(fault_of_next(), "");
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace elixir::checkpoints
