// elixird's own memory is at its end: what asked for more ends, if anything does, and the jobs
// beside it make the steps and have the bits of an undisturbed run.

#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "checkpoint/listing.h"
#include "tests/client/session_job.h"
#include "tests/daemon/fake_job.h"
#include "tests/failing_calls/planned_daemon.h"
#include "tests/support/every_case.h"
#include "tests/support/outcomes.h"
#include "tests/support/temporary_folder.h"

namespace elixir::testing {
namespace {

// Jobs that go on whatever happens, a kind of update each, and what each should have.
class Bystanders {
 public:
  explicit Bystanders(const DaemonProcess& daemon) {
    add(daemon, "deferred", [](FakeJob::Options&) {});
    add(daemon, "norms", [](FakeJob::Options& options) { options.norms = 1; });
    add(daemon, "immediate", [](FakeJob::Options& options) { options.immediate = 1; });
    add(daemon, "early", [](FakeJob::Options& options) {
      options.early = 1;
      options.model.shape.n_spare_slots = 2;
    });
    for (int i = 0; i < 3; ++i) step();  // what a job's first steps take it keeps
  }

  // Of each a step, by all its ranks.
  void step() {
    ++step_;
    for (Bystander& one : all_) {
      const shm::StepRecord record = make_record(step_, one.job->model().shape.ranks);
      if (one.job->options().immediate != 0) one.job->open(record);
      const Status made = one.job->step(step_);
      ASSERT_TRUE(made.ok()) << one.job->options().name << ": " << made.message();
      one.reference.step(record);
      const Status same = one.job->compare(one.reference);
      ASSERT_TRUE(same.ok()) << one.job->options().name << ", step " << step_ << ": "
                             << same.message();
    }
  }

 private:
  struct Bystander {
    std::unique_ptr<FakeJob> job;
    Reference reference;
  };

  template <typename Change>
  void add(const DaemonProcess& daemon, const std::string& name, Change change) {
    FakeJob::Options options{.folder = daemon.folder(), .name = name};
    change(options);
    auto job = must(FakeJob::start(options));
    Reference reference(job->model());
    all_.push_back({std::move(job), std::move(reference)});
  }

  std::vector<Bystander> all_;
  uint32_t step_ = 0;
};

// Attaches, loads and trains, as far as it is let: how it ended.
Status run_victim(const DaemonProcess& daemon) {
  const auto session = begin_job(daemon, "victim");
  if (!session.ok()) return session.status();
  return step(**session, 1);
}

// And asks for the status, saves, and loads that again. JSON values allocate in their destructors,
// which only the reserve can help.
Status run_victim_of_json(const DaemonProcess& daemon) {
  const TemporaryFolder folder;
  const auto session = begin_job(daemon, "victim");
  if (!session.ok()) return session.status();
  EXPECT_NE(daemon.ask_status(), "");
  ELIXIR_RETURN_IF_ERROR(step(**session, 1));
  ELIXIR_RETURN_IF_ERROR(save(**session, folder.path(), 1));
  ELIXIR_RETURN_IF_ERROR(step(**session, 2));
  return load(**session, folder.path(checkpoints::step_name(1)));
}

// It is told of the lack, or, where not even that was possible, sees its connection closed.
void expect_told(const Status& status) {
  if (status.ok()) return;
  const bool says = status.message().find("memory") != std::string::npos;
  const bool closed = status.code() == Code::kUnavailable;
  EXPECT_TRUE(says || closed) << code_name(status.code()) << ": " << status.message();
}

class LacksMemory : public ::testing::Test {
 protected:
  // While every `at`-th of the calls fails, a victim comes and is served or not. `passed`: calls
  // before the first of them, so that others fail.
  void expect_others_go_on(Call call, uint64_t at, Status (*run)(const DaemonProcess&),
                           uint64_t passed = 0) {
    SCOPED_TRACE(fmt::format("{}, {} passed", describe({call, ENOMEM}, at), passed));
    std::atomic<bool> over{false};
    Status victim;
    arm(&daemon_.plan(), {call, ENOMEM}, at);
    daemon_.plan().made[static_cast<uint32_t>(Maker::kElixir)][static_cast<uint32_t>(call)] =
        passed;
    daemon_.plan().every = true;
    std::thread its([&] {
      victim = run(process());
      over = true;
    });
    for (int steps = 0; (steps < 2 || !over) && !HasFatalFailure() && process().running();) {
      bystanders_.step();
      if (call == Call::kMalloc) {
        EXPECT_NE(process().ask_status(), "");
      }
      ++steps;
    }
    const bool lives = process().running();
    failed_ += daemon_.plan().failed;
    only_count(&daemon_.plan());
    its.join();
    ASSERT_TRUE(lives) << process().log();
    expect_told(victim);
    ended_ += victim.ok() ? 0 : 1;
    ASSERT_NE(process().ask_status(), "") << process().log();
  }

  // Nothing of the victims is left, and the next one is served.
  void expect_all_is_well() {
    must(gives_back(process().pid(), before_, test::kPatienceS));
    Status next;
    EXPECT_TRUE(test::eventually([&] {  // the reserve is there again at the next tick
      next = run_victim_of_json(process());
      return next.ok();
    })) << next.message();
    bystanders_.step();
  }

  DaemonProcess& process() { return daemon_.process(); }

  PlannedDaemon daemon_;
  Bystanders bystanders_{daemon_.process()};
  const Holding before_ = holding_at_rest(daemon_.process().pid());
  uint64_t failed_ = 0, ended_ = 0;
};

// Of elixird's own all, every second, every third and so on: beyond some hundred a victim is served
// before one fails.
TEST_F(LacksMemory, EndsWhatAskedForItAlone) {
  const uint64_t most = every_case() ? 400 : 100, begins = every_case() ? 8 : 1;
  for (uint64_t at = 1; at <= most; ++at) {
    for (uint64_t begin = 0; begin < std::min(begins, at); ++begin) {
      expect_others_go_on(Call::kAllocate, at, run_victim, begin * at / begins);
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(ended_, 5u);
  EXPECT_GE(failed_, ended_);
  expect_all_is_well();
  EXPECT_TRUE(becomes_true([&] {
    return process().log().find("event=memory_lacked") != std::string::npos;
  })) << process().log();
}

// libzmq's calls of malloc() among them, whose failure would end the process.
TEST_F(LacksMemory, TheReserveIsForWhatCannotFail) {
  for (uint64_t at = 2; at <= 200; at += every_case() || at < 5 ? 1 : at / 3) {
    expect_others_go_on(Call::kMalloc, at, run_victim_of_json);
    if (HasFailure()) return;
  }
  EXPECT_GT(failed_, 20u);
  expect_all_is_well();
}

// ---- the system's own limit ----

FakeModel model_of_many(uint32_t parameters) {
  FakeModel model = make_model(ComputeType::kFp32, 1, 1, 128 * parameters);
  model.places.clear();
  for (uint32_t i = 0; i < parameters; ++i) {
    model.places.push_back(
        {fmt::format("layers.{}.with.a.name.as.long.as.names.are", i), 0, uint64_t{i} * 128, 128});
  }
  model.shape.n_parameters = parameters;
  return model;
}

// As many jobs as fit below the limit are taken, the others told.
TEST(DataLimit, RefusesNewJobsAndEndsNone) {
  DaemonProcess daemon({"--workers", "1"});
  Bystanders bystanders(daemon);
  rlimit unlimited{};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_DATA, nullptr, &unlimited), 0);
  rlimit limit = unlimited;
  limit.rlim_cur = memory_bytes(daemon.pid(), "VmData");
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_DATA, &limit, nullptr), 0);
  std::vector<std::unique_ptr<FakeJob>> taken;
  Status refused;
  for (uint32_t i = 0; refused.ok() && i < 50; ++i) {
    auto job = FakeJob::start({.folder = daemon.folder(),
                               .name = fmt::format("many-{}", i),
                               .model = model_of_many(4000)});
    refused = job.status();
    if (job.ok()) taken.push_back(std::move(*job));
    bystanders.step();
    ASSERT_TRUE(daemon.running()) << daemon.log();
  }
  expect_refused(refused, Code::kResourceExhausted, {"elixird has no memory left", "ulimit -d"});
  for (auto& job : taken) EXPECT_TRUE(job->step(1).ok());
  EXPECT_NE(daemon.ask_status(), "");
  taken.clear();
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_DATA, &unlimited, nullptr), 0);
  Status next;
  EXPECT_TRUE(test::eventually([&] {
    const auto job =
        FakeJob::start({.folder = daemon.folder(), .name = "next", .model = model_of_many(4000)});
    next = job.ok() ? (*job)->step(1) : job.status();
    return next.ok();
  })) << next.message();
  bystanders.step();
}

}  // namespace
}  // namespace elixir::testing
