// What a step of many ranks and chunks costs elixird beside the update itself: looking at what was
// published, handing out the chunks, telling every rank of each. One job in this process, with its
// workers, without sockets; its chunks are as short as chunks can be. The measure is what a system
// call for each chunk and rank would take at that moment.

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/inherited.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "daemon/job.h"
#include "daemon/worker_pool.h"
#include "shm/futex.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kSliceNumel = 64 * 1024;
constexpr uint32_t kCalls = 20'000;  // of the system, that are timed

struct Settings {
  uint32_t ranks = 64, chunks = 10'000, steps = 15, workers = 2;
};

// The workers, and nobody at the other ends.
class Ports : public JobPorts {
 public:
  explicit Ports(uint32_t workers)
      : pool_({{.node = 0, .cpus = {}, .threads = workers}}, done_.get(), /*most_works=*/1) {}

  void start_save(Job&, std::shared_ptr<Saving>) override {}
  void start_restore(Job&, std::shared_ptr<Restoring>) override {}
  uint64_t free_bytes() override { return 0; }
  void free_later(std::shared_ptr<Saving>) override {}
  void submit(JobWork* work) override {
    in_flight_ = true;
    pool_.submit(work);
  }
  // False when there is nothing to wait for.
  bool await_workers() {
    if (!in_flight_) return false;
    while (pool_.take_done() == nullptr) {
      pollfd entry{done_.get(), POLLIN, 0};
      ::poll(&entry, 1, -1);
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(done_.get(), &count, sizeof count);
    }
    in_flight_ = false;
    return true;
  }

  void reply(const Session&, uint64_t) override {}
  void tell(const Session&, const Status& why, uint32_t) override { throw_if_error(why); }
  void close(int) override {}
  void fill_sums(Job&, std::shared_ptr<FillProgress>) override {}
  void over(Job&) override {}

 private:
  const UniqueFd done_{::eventfd(0, EFD_CLOEXEC)};
  bool in_flight_ = false;
  WorkerPool pool_;
};

Job::Options job_options(const Settings& settings) {
  Job::Options options;
  options.name = "bench";
  options.local_ranks = settings.ranks;
  options.shape = {.type = ComputeType::kBf16,
                   .ranks = settings.ranks,
                   .n_chunks = settings.chunks,
                   .n_parameters = settings.chunks,
                   .chunk_numel = shm::kAlignNumel};
  for (uint32_t chunk = 0; chunk < settings.chunks; ++chunk) {
    options.places.push_back({fmt::format("p{}", chunk), chunk, 0, 1});
  }
  return options;
}

// The trainers' side is written here, as client/session does it.
class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings), ports_(settings.workers), job_(job_options(settings), &ports_) {
    for (uint32_t rank = 0; rank < settings.ranks; ++rank) attach(rank);
    load();
  }

  // Milliseconds by part of the step.
  std::map<std::string, double> step(uint32_t step, bool skipped) {
    for (uint32_t rank = 0; rank < settings_.ranks; ++rank) publish(rank, step, skipped);
    std::map<std::string, double> ms;
    timed(&ms["posts"], [&] {
      for (const auto& session : job_.sessions()) job_.look_at_posted(*session);
    });
    for (const char* part : {"squares", "updates"}) {
      bool worked = false;
      timed(&ms[part], [&] { worked = ports_.await_workers(); });
      if (worked) timed(&ms[std::string("after ") + part], [&] { job_.work_done(); });
    }
    timed(&ms["tick"], [&] { job_.look_at_everything(); });
    const std::atomic<uint32_t> word{0};
    timed(&ms["calls"], [&] {
      for (uint32_t i = 0; i < kCalls; ++i) shm::futex_wake_all(word);
    });
    ms["calls"] *= static_cast<double>(settings_.ranks) * settings_.chunks / kCalls;
    ELIXIR_CHECK(job_.machine().finished_step() == step, "step {} is not finished", step);
    return ms;
  }

 private:
  template <typename Function>
  static void timed(double* ms, const Function& function) {
    const int64_t begin_ns = monotonic_ns();
    function();
    *ms = static_cast<double>(monotonic_ns() - begin_ns) * 1e-6;
  }

  const SessionMemory& memory(uint32_t rank) { return *job_.sessions()[rank]->memory; }

  void attach(uint32_t rank) {
    Session claimed;
    claimed.id = rank + 1;
    claimed.rank = claimed.local_rank = rank;
    Session& session = *value_or_throw(job_.claim(std::move(claimed)));
    session.reservation = Reservation{.progress = std::make_shared<FillProgress>()};
    job_.reserved(session, SessionMemory::create({.shape = job_.options().shape, .rank = rank}));
    if (!job_.attached(session)) return;
    const uint32_t threads_of_group[] = {settings_.workers};
    job_.begin_work(threads_of_group, kSliceNumel);
    for (const auto& other : job_.sessions()) job_.said_hello(*other, "peer");
  }

  void load() {
    for (uint32_t chunk = 0; chunk < settings_.chunks; ++chunk) {
      for (const shm::LoadPart part : {shm::LoadPart::kHighHalf, shm::LoadPart::kLowHalf}) {
        shm::LoadChunk message{};
        message.chunk = chunk;
        message.part = static_cast<uint32_t>(part);
        throw_if_error(job_.load_chunk(*job_.sessions()[0], message));
        while (ports_.await_workers()) job_.work_done();
      }
    }
  }

  void publish(uint32_t rank, uint32_t step, bool skipped) {
    const shm::Shape& shape = job_.options().shape;
    shm::ControlHeader& header = memory(rank).header();
    const uint16_t grad = skipped ? 0x7f80 : 0;  // infinity
    std::memcpy(memory(rank).grads().data(), &grad, sizeof grad);
    for (uint32_t chunk = 0; chunk < settings_.chunks; ++chunk) {
      shm::GradRecord& record = memory(rank).grad_record(chunk);
      memory(rank).grad_groups(step)[chunk].store(1, std::memory_order_relaxed);
      record.grad_step.store(step);
      record.grad_micro_step.store(1);
      record.grad_publication.store({.revision = step}, std::memory_order_release);
      header.publications.fetch_add(1, std::memory_order_release);
    }
    shm::StepRecord record{};
    record.step = step;
    record.grad_scale = 1;
    record.check_finite = 1;
    record.n_groups = 1;
    record.groups[0] = {1e-3, 0, {0.9, 0.95, 1e-8}};
    std::memcpy(memory(rank).control().data() + shape.step_records_offset() +
                    step % shm::kStepRing * sizeof record,
                &record, sizeof record);
    header.posted_step.store(step, std::memory_order_release);
  }

  const Settings settings_;
  Ports ports_;
  Job job_;
};

using Medians = std::map<std::string, double>;

Medians medians(Bench& bench, const Settings& settings, bool skipped, uint32_t* step) {
  std::map<std::string, std::vector<double>> all;
  for (uint32_t i = 0; i < settings.steps; ++i) {
    for (const auto& [part, ms] : bench.step(++*step, skipped)) all[part].push_back(ms);
  }
  Medians result;
  for (auto& [part, ms] : all) {
    const auto middle = ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2);
    std::nth_element(ms.begin(), middle, ms.end());
    result[part] = *middle;
  }
  return result;
}

// Says which goals are met, as shares of a system call a chunk and rank.
bool met(const Medians& updated, const Medians& skipped) {
  const struct {
    const char* what;
    double share, limit;
  } goals[] = {
      {"posts", updated.at("posts") / updated.at("calls"), 0.3},
      {"verdict and handing out", updated.at("after squares") / updated.at("calls"), 0.02},
      // Updates read the gradients that squares have read. Two workers' calls would be 0.5 more.
      {"telling", (updated.at("updates") - updated.at("squares")) / updated.at("calls"), 0.5},
      {"tick", updated.at("tick") / updated.at("calls"), 0.002},
      {"skipping", skipped.at("after squares") / skipped.at("calls"), 0.02},
  };
  bool all = true;
  for (const auto& goal : goals) {
    std::cout << fmt::format("{}: {:.4f} of the system calls, at most {}: {}\n", goal.what,
                             goal.share, goal.limit, goal.share <= goal.limit ? "met" : "MISSED");
    all = all && goal.share <= goal.limit;
  }
  return all;
}

int run(int argc, const char* const* argv) {
  Settings settings;
  bool check = false;
  CLI::App app("What a step costs elixird beside the update.", "bookkeeping");
  init_cli(app);
  app.add_option("--ranks", settings.ranks)->check(CLI::Range(1u, shm::kMaxLocalRanks));
  app.add_option("--chunks", settings.chunks)->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "of each kind")->check(CLI::PositiveNumber);
  app.add_option("--workers", settings.workers)->check(CLI::Range(1u, shm::kMaxWorkers));
  app.add_flag("--check", check, "exit with 1 when a goal is missed");
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  init_log("bookkeeping", LogLevel::kWarn);
  Bench bench(settings);
  std::cout << fmt::format("{} ranks, {} chunks, {} workers; medians of {} steps, ms\n",
                           settings.ranks, settings.chunks, settings.workers, settings.steps);
  uint32_t step = 0;
  const Medians updated = medians(bench, settings, /*skipped=*/false, &step);
  const Medians skipped = medians(bench, settings, /*skipped=*/true, &step);
  for (const Medians* parts : {&updated, &skipped}) {
    std::cout << (parts == &updated ? "updated:" : "skipped:");
    for (const auto& [part, ms] : *parts) std::cout << fmt::format("  {} {:.2f}", part, ms);
    std::cout << "\n";
  }
  return !met(updated, skipped) && check ? 1 : 0;
}

}  // namespace
}  // namespace elixir::daemon

int main(int argc, char** argv) {
  elixir::settle_inherited();
  try {
    return elixir::daemon::run(argc, argv);
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << "\n";
    return 1;
  }
}
