// How many workers there are, by what their memory gives: measured at the start, and again where
// others disturbed that (BandwidthWatch).

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/processors.h"
#include "daemon/daemon.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kProbeShareOfMemory = 8;  // the probe's buffer takes at most an eighth

// One node stands for all: they are built alike. A quota is one for all.
Bandwidth of_all_nodes(const Bandwidth& of_one, size_t nodes, uint32_t most_threads) {
  const auto n_nodes = static_cast<uint32_t>(nodes);
  const uint32_t threads = std::min({of_one.threads * n_nodes, most_threads, shm::kMaxWorkers});
  return {threads, of_one.gb_s * std::min(n_nodes, threads)};
}

}  // namespace

// Of one node; 0: as many as gain by it.
uint32_t Daemon::threads_to_measure() const {
  const auto n_nodes = static_cast<uint32_t>(nodes_.size());
  return (config_.workers + n_nodes - 1) / n_nodes;
}

void Daemon::start_threads() {
  nodes_ = allowed_nodes();
  uint32_t threads = config_.workers;
  std::vector<int> processors;
  for (const NodeCpus& node : nodes_) {
    processors.insert(processors.end(), node.cpus.begin(), node.cpus.end());
  }
  if (threads == 0) {
    threads = std::min(parallel_threads(), static_cast<uint32_t>(processors.size()));
  }
  threads = std::min(threads, shm::kMaxWorkers);
  if (!config_.no_bandwidth_probe) {
    const uint64_t spare_bytes = memory_room("", config_.memory_room_bytes).available_bytes;
    const MachineLoad before = load_of_last_minute();
    (void)others_.look();
    const Bandwidth measured =
        of_all_nodes(measure_bandwidth(nodes_[0], threads_to_measure(),
                                       spare_bytes / kProbeShareOfMemory, stop_measuring_),
                     nodes_.size(), threads);
    const MachineLoad beside = others_.look();
    const uint32_t enough =
        bandwidth_.started(measured, before.idle() && beside.idle(),
                           config_.workers == 0 ? threads : 0, last_level_cache_bytes(processors));
    if (config_.workers == 0) threads = enough;
    if (bandwidth_.wants_measurement()) {
      log_warn("bandwidth_disturbed",
               "gb_s={:.1f} workers={} load={:.1f} others_busy={:.1f} processors={:.0f} "
               "effect='the memory may be faster, and fewer workers may be enough' next='measured "
               "again when the machine is idle'",
               measured.gb_s, threads, before.busy, beside.busy, beside.processors);
    }
  }
  const auto background = [this](const Background::Options& options) {
    return std::make_unique<Background>(options, background_done_.get());
  };
  background_ = background({.threads = kBackgroundThreads});
  tables_ = background({.threads = kTablesThreads, .niceness = kTablesNiceness});
  folders_ = background(
      {.threads = kFolderThreads, .most_threads = config_.max_jobs, .niceness = kTablesNiceness});
  // The workers last: of those alone there may be fewer.
  pool_ = std::make_unique<WorkerPool>(spread_threads(nodes_, threads), work_done_.get(),
                                       config_.max_jobs);
}

// A job has work, or memory is being filled for one.
void Daemon::note_work() {
  had_work_ = true;
  bandwidth_.disturb();
  stop_measuring_.store(true, std::memory_order_relaxed);
}

bool Daemon::workers_are_free() const {
  return std::none_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second->step_in_hand() || entry.second->work_in_hand();
  });
}

void Daemon::look_at_bandwidth(int64_t now_ns) {
  if (!bandwidth_.waits() || now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kBandwidthLookNs;
  choose_workers();
  const bool saves = std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second->saving() != nullptr;
  });
  const bool quiet = !std::exchange(had_work_, false) && !saves && !stopping_ && !memory_moves() &&
                     workers_are_free();
  const bool idle = others_.look().idle() && load_of_last_minute().idle();
  if (bandwidth_.begin(now_ns, quiet, idle)) measure_again();
}

// Its buffer is no job's meanwhile: memory_moves().
void Daemon::measure_again() {
  struct Outcome {
    Bandwidth measured;
    bool idle = false;  // until it is over: without memory for it it does not count
  };
  const auto outcome = std::make_shared<Outcome>();
  stop_measuring_.store(false, std::memory_order_relaxed);
  background_->start(
      [this, outcome, node = nodes_[0], threads = threads_to_measure(),
       spare_bytes = room_for_jobs().available_bytes / kProbeShareOfMemory] {
        OthersLoad others;
        outcome->measured = measure_bandwidth(node, threads, spare_bytes, stop_measuring_);
        outcome->idle = others.look().idle();
      },
      [this, outcome] {
        const uint32_t most = config_.workers != 0 ? config_.workers : parallel_threads();
        on_measured(of_all_nodes(outcome->measured, nodes_.size(), most), outcome->idle);
      });
}

void Daemon::on_measured(const Bandwidth& measured, bool idle) {
  const double before_gb_s = bandwidth_.gb_s();
  if (bandwidth_.ended(monotonic_ns(), measured, idle)) {
    log_info("bandwidth_measured", "gb_s={:.1f} before_gb_s={:.1f} workers={} enough={}",
             bandwidth_.gb_s(), before_gb_s, pool_->n_threads(), measured.threads);
    choose_workers();
  }
  retry_waiting();
}

// Where no worker has work. Jobs are cut into slices by groups, whose number stays while there are
// any.
void Daemon::choose_workers() {
  const uint32_t wanted = bandwidth_.wanted_threads();
  if (wanted == 0 || !workers_are_free()) return;
  std::vector<NodeThreads> groups = spread_threads(nodes_, wanted);
  if (!jobs_.empty() && groups.size() != pool_->groups().size()) return;
  try {
    auto pool = std::make_unique<WorkerPool>(std::move(groups), work_done_.get(), config_.max_jobs);
    log_info("workers_chosen", "workers={} before={}", pool->n_threads(), pool_->n_threads());
    pool_ = std::move(pool);
  } catch (const std::system_error& failure) {
    log_warn("threads_refused", "workers={} wanted={} cause=\"{}\" remedy='ulimit -u, TasksMax'",
             pool_->n_threads(), wanted, failure.what());
  }
  bandwidth_.chosen();
  document_.clear();
}

}  // namespace elixir::daemon
