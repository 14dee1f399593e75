// Saves that do not end: of one job, they hold up no other one.

#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "checkpoint/listing.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing::hung_saves {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;
constexpr double kStopS = 18;  // elixir-run kills an elixird that takes 20 s to stop

std::vector<std::string> quick(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--workers", "2", "--test-slice-numel", "256"});
  return more;
}

// A job that has made a step. With a chunk on the GPU its save waits for its ranks.
std::unique_ptr<FakeJob> trained(const DaemonProcess& daemon, const std::string& name,
                                 uint32_t gpu_chunks, uint64_t chunk_numel = kChunkNumel) {
  FakeModel model = make_model(ComputeType::kFp32, 1, 3, chunk_numel);
  model.shape.n_gpu_chunks = gpu_chunks;
  auto job = FakeJob::start({.folder = daemon.folder(), .name = name, .model = model});
  EXPECT_TRUE(job.ok()) << job.status().message();
  EXPECT_TRUE((*job)->step(1).ok());
  return std::move(*job);
}

uint32_t begin_save(FakeJob& job, const std::string& parent,
                    std::optional<uint64_t> shadow_bytes = {}) {
  checkpoints::Details details;
  details.shadow_bytes = shadow_bytes;
  const uint32_t number = job.rank(0).save(parent, checkpoints::step_name(1), 1, details);
  const Status heard = job.rank(0).wait_heard(number);
  EXPECT_TRUE(heard.ok()) << heard.message();
  return number;
}

// A save there, and a load of what it saved.
void save_and_load(const DaemonProcess& daemon, const std::string& parent) {
  const auto job = trained(daemon, "third", 0);
  const Status saved = job->rank(0).wait_over(begin_save(*job, parent));
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
  begin_save(*first, folder.path());
  begin_save(*second, other.path());
  const TemporaryFolder third;
  save_and_load(daemon, third.path());
  const int64_t start_ns = monotonic_ns();
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0) << daemon.log();
  EXPECT_LT(seconds_since(start_ns), kStopS / 2) << "nothing hangs: they were broken off";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(HungSaves, OfFoldersThatDoNotAnswerHoldUpNeitherOtherJobsNorTheEnd) {
  const DeadFolder dead;
  if (!dead.mounted()) GTEST_SKIP() << "only root may mount a file system";
  DaemonProcess daemon(quick());
  const auto first = trained(daemon, "first", 0), second = trained(daemon, "second", 0);
  begin_save(*first, dead.path(), 0);
  begin_save(*second, dead.path());
  const auto loading = FakeJob::attach({.folder = daemon.folder(),
                                        .name = "loading",
                                        .model = make_model(ComputeType::kFp32, 1, 3, 1024)});
  ASSERT_TRUE(loading.ok()) << loading.status().message();
  FakeTrainer& loader = (*loading)->rank(0);
  ASSERT_TRUE(loader.wait_heard(loader.load(dead.path())).ok());
  const TemporaryFolder third;
  save_and_load(daemon, third.path());
  EXPECT_TRUE(becomes_true([&] {  // the third has said goodbye
    return nlohmann::json::parse(daemon.ask_status())["jobs"].size() == 3;
  }));
  // Its update waits for the save. What every rank has posted is made all the same.
  first->post(2);
  EXPECT_TRUE(becomes_true([&] { return first->rank(0).header().committed_step.load() == 2; }));
  const int64_t start_ns = monotonic_ns();
  daemon.signal(SIGTERM);
  for (FakeJob* job : {first.get(), second.get(), loading->get()}) {
    const auto fault = job->rank(0).wait_session_fault();
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kUnavailable));
  }
  EXPECT_LT(seconds_since(start_ns), kStopS / 2) << "ranks hear at once";
  // Not wait_finished(), which ends with the fault.
  EXPECT_TRUE(becomes_true([&] { return first->rank(0).header().finished_step.load() == 2; }));
  EXPECT_EQ(daemon.wait(), 0) << daemon.log();
  EXPECT_LT(seconds_since(start_ns), kStopS);
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
  const uint32_t number = begin_save(*first, folder.path(), shadow_bytes);
  EXPECT_TRUE(becomes_true([&] { return of_first()["save_bytes"] > shadow_bytes / 2; }));
  const uint64_t taken = of_first()["save_bytes"].get<uint64_t>();
  EXPECT_LT(taken, shadow_bytes + 2 * model.shape.image_bytes());

  const auto second = FakeTrainer::ask(
      {.folder = daemon.folder(), .job = "second", .shape = model.shape, .places = model.places});
  ASSERT_TRUE(second.ok()) << second.status().message();
  ::usleep(300'000);
  const auto jobs = [&] { return nlohmann::json::parse(daemon.ask_status())["jobs"].size(); };
  EXPECT_EQ(jobs(), 1u) << "the second one was promised what copies may take";
  // A third one that needs more than there is without saves is refused at once.
  const FakeModel large = make_model(ComputeType::kFp32, 1, 12, kNumel);
  const auto third = FakeJob::attach({.folder = daemon.folder(), .name = "large", .model = large});
  EXPECT_EQ(third.status().code(), Code::kResourceExhausted);
  EXPECT_NE(third.status().message().find("of saves"), std::string::npos)
      << third.status().message();
  first->rank(0).stage(number, model.shape.n_chunks);
  const Status over = first->rank(0).wait_over(number);
  EXPECT_TRUE(over.ok()) << over.message();
  EXPECT_TRUE(becomes_true([&] { return jobs() == 2; })) << daemon.log();
  EXPECT_EQ(of_first()["save_bytes"], 0u);
}

}  // namespace
}  // namespace elixir::testing::hung_saves
