// Folders written and read by a real elixird: while its threads train, when a disk does not answer,
// and as no correct trainer asks. What a save and a load do to a job: job_saves_test.cpp. Who is
// killed meanwhile: checkpoint/crash_test.cpp, at each call, and e2e/checkpoint_killed_test.py.
//
//   ELIXIR_EVERY_CASE=1  all 108 cases; else 12, in which every two values of two columns meet

#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/compute_type_names.h"
#include "checkpoint/listing.h"
#include "checkpoint/load_plan.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_folders.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/every_case.h"
#include "tests/support/outcomes.h"

namespace elixir::testing::saves {
namespace {

using test::expect_refused;
using test::must;

constexpr uint64_t kChunkNumel = 128 * 37;

// Elixird waits for nobody at its start.
std::vector<std::string> quick(std::vector<std::string> more = {}) {
  std::vector<std::string> all = {"--no-bandwidth-probe", "--workers", "2", "--test-slice-numel",
                                  "256"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Every rank asks, and is heard.
std::vector<uint32_t> save(FakeJob& job, const std::string& parent, uint32_t step,
                           std::optional<uint64_t> shadow_bytes = {}) {
  checkpoints::Details details;
  details.shadow_bytes = shadow_bytes;
  details.keep.last = 2;
  std::vector<uint32_t> numbers;
  for (auto& rank : job.ranks()) {
    const bool first = numbers.empty();
    numbers.push_back(rank->save(parent, checkpoints::step_name(step), step,
                                 first ? details : checkpoints::Details{}));
    const Status heard = rank->wait_heard(numbers.back());
    EXPECT_TRUE(heard.ok()) << heard.message();
  }
  return numbers;
}

struct Case {
  ComputeType type;
  std::string rate;        // of the disk
  uint64_t shadow_chunks;  // 100: all
  uint32_t spare_slots;    // updates are early with some
  uint32_t swing_chunks;
};

std::vector<Case> cases() {
  constexpr ComputeType kTypes[] = {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32};
  constexpr const char* kRates[] = {"0", "1MiB", "8MiB"};
  constexpr uint64_t kShadows[] = {0, 2, 100};
  constexpr std::pair<uint32_t, uint32_t> kUpdates[] = {{0, 0}, {2, 0}, {6, 0}, {0, 3}};
  const bool every = every_case();
  std::vector<Case> all;
  for (uint32_t type = 0; type < 3; ++type) {
    for (uint32_t rate = 0; rate < 3; ++rate) {
      for (uint32_t shadow = 0; shadow < 3; ++shadow) {
        for (uint32_t updates = 0; updates < 4; ++updates) {
          const bool sampled =
              shadow == (type + rate) % 3 && updates % 3 == (type + 2 * rate + 2) % 3;
          if (!every && !sampled) continue;
          const auto& [spare, swing] = kUpdates[updates];
          all.push_back({kTypes[type], kRates[rate], kShadows[shadow], spare, swing});
        }
      }
    }
  }
  return all;
}

class Saves : public ::testing::TestWithParam<Case> {
 protected:
  // A test that is held up until its save is over does not stall; all of them are not.
  static void TearDownTestSuite() {
    if (may_stall_ > 0) {
      EXPECT_GT(stalled_, 0u) << "of " << may_stall_;
    }
  }

  static inline uint32_t may_stall_ = 0, stalled_ = 0;
};

TEST_P(Saves, HoldTheBitsOfTheStepWhileTrainingGoesOnAndARunGoesOnFromThem) {
  FakeModel model = make_model(GetParam().type, 2, 6, kChunkNumel);
  model.shape.n_spare_slots = GetParam().spare_slots;
  model.shape.n_swing_chunks = GetParam().swing_chunks;
  model.shape.n_swing_lanes = GetParam().swing_chunks > 0 ? 2 : 0;
  DaemonProcess daemon(quick({"--checkpoint-rate", GetParam().rate}));
  const TemporaryFolder folder;
  const FakeJob::Options options{
      .folder = daemon.folder(), .model = model, .early = GetParam().spare_slots > 0 ? 1u : 0u};
  auto job = must(FakeJob::start(options));
  Reference reference(model);
  const auto advance = [&](FakeJob& by, uint32_t step) {
    ASSERT_TRUE(by.step(step).ok());
    reference.step(make_record(step, 2));
  };
  for (uint32_t step = 1; step <= 2; ++step) advance(*job, step);
  // The save waits for all ranks' swing chunks of its step.
  job->post(3);
  ASSERT_TRUE(job->rank(0).swing(3).ok());
  const uint64_t chunk_bytes = model.shape.image_bytes() * 2;
  const auto numbers = save(*job, folder.path(), 3, GetParam().shadow_chunks * chunk_bytes);
  if (GetParam().swing_chunks > 0) {
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    ASSERT_TRUE(job->rank(1).swing(3).ok());
  }
  ASSERT_TRUE(job->wait_finished(3).ok());
  auto status = nlohmann::json::parse(daemon.ask_status(), nullptr, false);
  ASSERT_TRUE(status.is_object()) << "nobody answers while a save is under way";
  EXPECT_EQ(status["jobs"][0]["checkpoints"]["step"], 3);
  reference.step(make_record(3, 2));
  const Reference at_three = reference;
  for (uint32_t step = 4; step <= 8; ++step) advance(*job, step);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Status over = job->rank(rank).wait_over(numbers[rank]);
    ASSERT_TRUE(over.ok()) << over.message();
  }
  // Saving has changed nothing.
  EXPECT_TRUE(job->compare(reference).ok()) << job->compare(reference).message();
  const shm::FolderResult& result = job->rank(0).folder_result(numbers[0]);
  EXPECT_LE(result.shadow_peak_bytes, GetParam().shadow_chunks * chunk_bytes);
  // What a slow disk does to a job that may copy nothing is counted. (Early updates leave the chunk
  // where it is read.)
  if (GetParam().rate == "1MiB" && GetParam().shadow_chunks == 0 && GetParam().spare_slots == 0) {
    ++may_stall_;
    stalled_ += result.stall_ns > 0 ? 1 : 0;
  }
  job->detach();

  const auto latest = must(checkpoints::latest_checkpoint(folder.path()));
  const Status whole = checkpoints::verify(
      must(checkpoints::open_stored_folder(latest.checkpoint.path)), 1, nullptr);
  EXPECT_TRUE(whole.ok()) << whole.message();
  // Others swing from there on.
  model.shape.n_swing_chunks = GetParam().swing_chunks > 0 ? 1 : 0;
  model.shape.n_swing_lanes = model.shape.n_swing_chunks;
  auto again = must(FakeJob::attach({.folder = daemon.folder(), .name = "again", .model = model}));
  FakeTrainer& first = again->rank(0);
  ASSERT_TRUE(first.wait_over(first.load(latest.checkpoint.path)).ok());
  for (auto& rank : again->ranks()) ASSERT_TRUE(rank->await_ready().ok());
  const Status same = again->compare(at_three);
  ASSERT_TRUE(same.ok()) << same.message();
  EXPECT_FALSE(again->compare(reference).ok()) << "the control: five steps change nothing";
  for (uint32_t step = 1; step <= 5; ++step) {
    const Status made = step_as(*again, step, step + 3);
    ASSERT_TRUE(made.ok()) << made.message();
  }
  EXPECT_TRUE(again->compare(reference).ok()) << again->compare(reference).message();
  again->detach();
}

INSTANTIATE_TEST_SUITE_P(TypesDisksBudgets, Saves, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}_{}_{}", compute_type_name(info.param.type),
                                              info.param.rate, info.param.shadow_chunks,
                                              info.param.spare_slots, info.param.swing_chunks);
                         });

// ---- what no correct trainer sends ----

class HostileRequests : public ::testing::Test {
 protected:
  std::unique_ptr<FakeJob> start(const std::string& name) {
    return must(FakeJob::start({.folder = daemon_.folder(),
                                .name = name,
                                .model = make_model(ComputeType::kFp32, 1, 2, kChunkNumel)}));
  }
  // A job's only request ends its session, and nothing else.
  template <typename Message>
  void expect_ended(const std::string& name, const Message& message, std::vector<int> fds,
                    const std::string& needle) {
    const auto job = start(name);
    job->rank(0).send_request(message, fds);
    const shm::SessionFault fault = must(job->rank(0).wait_session_fault());
    expect_refused(Status(static_cast<Code>(fault.code), fault.text), Code::kProtocol, {needle});
    EXPECT_TRUE(daemon_.running());
  }

  static shm::SaveFolder save_message(uint64_t details_bytes = 0) {
    shm::SaveFolder message{};
    message.number = 1;
    message.details_bytes = details_bytes;
    shm::set_text(message.name, "a");
    return message;
  }
  static shm::LoadFolder load_message(uint64_t details_bytes = 0) {
    shm::LoadFolder message{};
    message.number = 1;
    message.details_bytes = details_bytes;
    return message;
  }

  DaemonProcess daemon_{quick()};
  const TemporaryFolder folder_;
  const UniqueFd opened_ = open_folder(folder_.path());
};

TEST_F(HostileRequests, EndTheirSessionAlone) {
  const UniqueFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const int folder = opened_.get(), file = zeros.get();
  const auto other = start("other");
  shm::SaveFolder out_of_turn = save_message(), with_more = save_message();
  out_of_turn.number = 7;
  with_more.flags = shm::kHasStaging | shm::kHasLock;
  expect_ended("turn", out_of_turn, {folder, file}, "request 7 for a folder");
  expect_ended("few", save_message(), {folder}, "descriptors, not 2");
  expect_ended("fewer", with_more, {folder, file}, "descriptors, not 4");
  expect_ended("file", save_message(), {file, file}, "not a folder");
  expect_ended("many", save_message(uint64_t{1} << 60), {folder, file}, "bytes of details");
  expect_ended("zeros", save_message(4096), {folder, file}, "no sealed memfd");
  expect_ended("load-file", load_message(), {file, file}, "not a folder");
  expect_ended("load-zeros", load_message(4096), {folder, file}, "no sealed memfd");
  // More than may be under way. The first one may have ended the session before the last is sent.
  const auto job = start("ring");
  for (uint32_t number = 1; number <= shm::kFolderRing; ++number) {
    shm::SaveFolder message = save_message(8);
    message.number = number;
    const int fds[] = {folder, file};
    if (!job->rank(0).try_request(message, fds).ok()) break;
  }
  EXPECT_TRUE(other->step(1).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  other->detach();
}

TEST_F(HostileRequests, WhatWasSavedIsInStatus) {
  const auto job = start("status");
  ASSERT_TRUE(job->step(1).ok());
  EXPECT_EQ(nlohmann::json::parse(daemon_.ask_status())["jobs"][0].count("checkpoints"), 0u);
  const auto numbers = save(*job, folder_.path(), 1);
  ASSERT_TRUE(job->rank(0).wait_over(numbers[0]).ok());
  const auto again = job->rank(0).save(folder_.path(), checkpoints::step_name(1), 1);
  EXPECT_EQ(job->rank(0).wait_over(again).code(), Code::kInvalidArgument) << "the name is taken";
  EXPECT_TRUE(job->rank(0).wait_heard(again).ok()) << "it was taken, and failed before this look";
  const auto saves = nlohmann::json::parse(daemon_.ask_status())["jobs"][0]["checkpoints"];
  EXPECT_EQ(saves["published"], 1);
  EXPECT_EQ(saves["failed"], 1);
  EXPECT_EQ(saves["step"], 1);
  EXPECT_NE(saves["error_last"], "");
  job->detach();
}

// ---- saves that do not end: of one job, they hold up no other one ----

// A job that has made a step. With a chunk on the GPU its save waits for its ranks.
std::unique_ptr<FakeJob> trained(const DaemonProcess& daemon, const std::string& name,
                                 uint32_t gpu_chunks, uint64_t chunk_numel = kChunkNumel) {
  FakeModel model = make_model(ComputeType::kFp32, 1, 3, chunk_numel);
  model.shape.n_gpu_chunks = gpu_chunks;
  auto job = must(FakeJob::start({.folder = daemon.folder(), .name = name, .model = model}));
  EXPECT_TRUE(job->step(1).ok());
  return job;
}

// A save there, and a load of what it saved.
void save_and_load(const DaemonProcess& daemon, const std::string& parent) {
  const auto job = trained(daemon, "third", 0);
  const Status saved = job->rank(0).wait_over(save(*job, parent, 1)[0]);
  EXPECT_TRUE(saved.ok()) << saved.message();
  FakeTrainer& rank = job->rank(0);
  const Status loaded = rank.wait_over(rank.load(parent + "/" + checkpoints::step_name(1)));
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  job->detach();
}

// A file system whose root can be opened, and that answers to nothing else.
class DeadFolder {
 public:
  DeadFolder() : fuse_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string data = fmt::format("fd={},rootmode=40700,user_id=0,group_id=0", fuse_.get());
    mounted_ = fuse_.valid() && ::mount("elixir-test", path().c_str(), "fuse", MS_NOSUID | MS_NODEV,
                                        data.c_str()) == 0;
    if (!mounted_) return;
    const pid_t server = ::fork();
    if (server == 0) {
      answer<fuse_init_in>(0, [](const fuse_init_in& in) {
        fuse_init_out out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = std::min<uint32_t>(in.minor, FUSE_KERNEL_MINOR_VERSION);
        out.max_write = 4096;
        return out;
      });
      answer<fuse_open_in>(-ENOSYS, [](const fuse_open_in&) { return fuse_open_out{}; });
      ::_exit(0);
    }
    const UniqueFd opened(::open(path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    mounted_ = opened.valid();
    ::waitpid(server, nullptr, 0);
  }
  ~DeadFolder() {
    fuse_.reset();  // who waits is told that it is gone
    ::umount2(path().c_str(), MNT_DETACH);
  }
  DeadFolder(const DeadFolder&) = delete;
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  // The next request. A body where `failure` is 0.
  template <typename In, typename Body>
  void answer(int failure, Body reply) const {
    alignas(8) std::byte request[16 << 10];
    if (::read(fuse_.get(), request, sizeof request) < 0) ::_exit(1);
    const auto* header = reinterpret_cast<const fuse_in_header*>(request);
    struct {
      fuse_out_header header;
      decltype(reply(std::declval<In>())) body;
    } out{};
    out.body = reply(*reinterpret_cast<const In*>(header + 1));
    out.header.unique = header->unique;
    out.header.error = failure;
    out.header.len = static_cast<uint32_t>(failure == 0 ? sizeof out : sizeof out.header);
    if (::write(fuse_.get(), &out, out.header.len) < 0) ::_exit(1);
  }

  const TemporaryFolder folder_;
  UniqueFd fuse_;
  bool mounted_ = false;
};

TEST(HungSaves, OfRanksThatBringNothingHoldUpNoOtherJob) {
  DaemonProcess daemon(quick());
  const TemporaryFolder folder, other;
  const auto first = trained(daemon, "first", 1), second = trained(daemon, "second", 1);
  save(*first, folder.path(), 1);
  save(*second, other.path(), 1);
  const TemporaryFolder third;
  save_and_load(daemon, third.path());
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0) << daemon.log();
  EXPECT_EQ(daemon.log().find("event=folder_hangs"), std::string::npos) << "broken off";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(HungSaves, OfFoldersThatDoNotAnswerHoldUpNeitherOtherJobsNorTheEnd) {
  const DeadFolder dead;
  if (!dead.mounted()) GTEST_SKIP() << "only root may mount a file system";
  DaemonProcess daemon(quick());
  const auto first = trained(daemon, "first", 0), second = trained(daemon, "second", 0);
  save(*first, dead.path(), 1, 0);
  save(*second, dead.path(), 1);
  const auto loading = must(FakeJob::attach({.folder = daemon.folder(),
                                             .name = "loading",
                                             .model = make_model(ComputeType::kFp32, 1, 3, 1024)}));
  FakeTrainer& loader = loading->rank(0);
  ASSERT_TRUE(loader.wait_heard(loader.load(dead.path())).ok());
  const TemporaryFolder third;
  save_and_load(daemon, third.path());
  EXPECT_TRUE(becomes_true([&] {  // the third has said goodbye
    return nlohmann::json::parse(daemon.ask_status())["jobs"].size() == 3;
  }));
  // Its update waits for the save. What every rank has posted is made all the same.
  first->post(2);
  EXPECT_TRUE(becomes_true([&] { return first->rank(0).header().committed_step.load() == 2; }));
  daemon.signal(SIGTERM);
  for (FakeJob* job : {first.get(), second.get(), loading.get()}) {
    const auto fault = must(job->rank(0).wait_session_fault());
    EXPECT_EQ(fault.code, static_cast<uint32_t>(Code::kUnavailable));
  }
  // Not wait_finished(), which ends with the fault.
  EXPECT_TRUE(becomes_true([&] { return first->rank(0).header().finished_step.load() == 2; }));
  EXPECT_EQ(daemon.wait(), 0) << daemon.log();
  for (const char* name : {"first", "second", "loading"}) {
    EXPECT_NE(daemon.log().find(fmt::format("event=folder_hangs job='{}'", name)),
              std::string::npos)
        << daemon.log();
  }
  EXPECT_FALSE(std::filesystem::exists(daemon.folder().attach_socket()));
}

// ---- memory ----

TEST(HungSaves, WhatCopiesMayTakeIsNoOtherJobsUntilTheSaveIsOver) {
  constexpr uint64_t kNumel = 1 << 20;
  const FakeModel model = make_model(ComputeType::kFp32, 1, 3, kNumel);
  const uint64_t job_bytes = model.shape.session_bytes();
  const uint64_t shadow_bytes = 3 * model.shape.image_bytes();
  // Two jobs, and half of what copies may take.
  const uint64_t limit = 2 * job_bytes + shadow_bytes / 2 + (8 << 20);
  DaemonProcess daemon(quick({"--memory-limit", std::to_string(limit)}));
  const TemporaryFolder folder;
  const auto first = trained(daemon, "first", 1, kNumel);
  const auto of_first = [&] { return nlohmann::json::parse(daemon.ask_status())["jobs"][0]; };
  EXPECT_EQ(of_first()["save_bytes"], 0u);
  const uint32_t number = save(*first, folder.path(), 1, shadow_bytes)[0];
  EXPECT_TRUE(becomes_true([&] { return of_first()["save_bytes"] > shadow_bytes / 2; }));
  const uint64_t taken = of_first()["save_bytes"].get<uint64_t>();
  EXPECT_LT(taken, shadow_bytes + 2 * model.shape.image_bytes());

  const auto second = must(FakeTrainer::ask(
      {.folder = daemon.folder(), .job = "second", .shape = model.shape, .places = model.places}));
  const auto jobs = [&] { return nlohmann::json::parse(daemon.ask_status())["jobs"].size(); };
  // A third one that needs more than there is without saves is refused at once.
  const FakeModel large = make_model(ComputeType::kFp32, 1, 12, kNumel);
  const auto third = FakeJob::attach({.folder = daemon.folder(), .name = "large", .model = large});
  expect_refused(third.status(), Code::kResourceExhausted, {"of saves"});
  // Tables are read one after another: the second one's before.
  EXPECT_EQ(jobs(), 1u) << "the second one was promised what copies may take";
  first->rank(0).stage(number, model.shape.n_chunks);
  const Status over = first->rank(0).wait_over(number);
  EXPECT_TRUE(over.ok()) << over.message();
  EXPECT_TRUE(becomes_true([&] { return jobs() == 2; })) << daemon.log();
  EXPECT_EQ(of_first()["save_bytes"], 0u);
}

}  // namespace
}  // namespace elixir::testing::saves
