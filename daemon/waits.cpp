#include "daemon/waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace elixir::daemon {
namespace {

constexpr size_t kMostNamed = 8;
constexpr int64_t kFirstNs = 10'000'000'000, kAgainNs = 30'000'000'000;  // in the log

std::string named(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i]);
  }
  if (ranks.size() > kMostNamed) text += fmt::format(" and {} more", ranks.size() - kMostNamed);
  return text;
}

std::vector<uint32_t> ranks_that(const Job& job, const Session& session, const auto& lack) {
  std::vector<uint32_t> ranks;
  for (const auto& other : job.sessions()) {
    if (other != nullptr && other.get() != &session && lack(*other)) ranks.push_back(other->rank);
  }
  return ranks;
}

shm::SaidWait said_by(const Session& session) {
  if (session.memory == nullptr) return {};
  return session.memory->header().said_wait.load(std::memory_order_relaxed);  // orders nothing
}

// Those that have not published what the rank waits to be summed.
std::vector<uint32_t> without_gradients(const Job& job, const Session& session) {
  // Relaxed: what it orders is not read here.
  const uint32_t awaited = session.memory->header().awaited_sum.load(std::memory_order_relaxed);
  if (awaited == 0 || awaited > job.options().shape.n_chunks) return {};
  const Publication& own = job.tracker().noted(session.local_rank, awaited - 1);
  return ranks_that(job, session, [&](const Session& other) {
    if (job.machine().posted_step(other.local_rank) >= own.step) return false;
    const Publication& theirs = job.tracker().noted(other.local_rank, awaited - 1);
    return std::tie(theirs.step, theirs.micro_step) < std::tie(own.step, own.micro_step);
  });
}

std::vector<uint32_t> without_swing_update(const Job& job, const Session& session) {
  const SwingUpdates& swings = job.swings();
  if (!swings.begun() || swings.over()) return {};
  uint64_t late = 0;
  for (uint32_t chunk = swings.first(); chunk < swings.end(); ++chunk) {
    if (swings.is_open(chunk)) late |= swings.missing(chunk);
  }
  // elixird makes those of ranks that are gone.
  return ranks_that(job, session, [&](const Session& other) {
    return (late >> other.local_rank & 1) != 0 && other.socket >= 0;
  });
}

// What the rank says itself. Foreign: what cannot be is not shown.
std::optional<RankWait> said_wait(const Job& job, const Session& session) {
  const shm::SaidWait said = said_by(session);
  const uint32_t rank = said.rank_after - 1;
  if (said.rank_after > job.options().shape.ranks || rank == session.rank) return std::nullopt;
  std::vector<uint32_t> ranks;
  std::string what;
  switch (static_cast<shm::WaitsFor>(said.what)) {
    case shm::WaitsFor::kCollective:
      what = "{} in a collective";
      ranks = ranks_that(job, session, [](const Session& s) { return said_by(s).what == 0; });
      break;
    case shm::WaitsFor::kSum:
      what = "gradients of {} in a backward pass";
      ranks = without_gradients(job, session);
      break;
    case shm::WaitsFor::kBuffers:
      what = "buffers with {}";
      break;
    case shm::WaitsFor::kSwing:
      what = "updates of swing chunks by {}";
      ranks = without_swing_update(job, session);
      break;
    default:
      return std::nullopt;
  }
  if (said.rank_after > 0) ranks = {rank};
  if (ranks.empty()) return std::nullopt;
  const int64_t since_ns = std::min(int64_t{said.since_s} * 1'000'000'000, monotonic_ns());
  return RankWait{session.rank, session.local_rank, fmt::format(fmt::runtime(what), named(ranks)),
                  since_ns};
}

}  // namespace

std::vector<RankWait> waits_of(const Job& job) {
  std::vector<RankWait> waits;
  const JobMachine& machine = job.machine();
  if (job.phase() == JobPhase::kEnding) return waits;
  const auto add = [&](const Session& session, std::string what) {
    waits.push_back({session.rank, session.local_rank, std::move(what), session.moved_ns});
  };
  const std::vector<uint32_t> missing = machine.missing_ranks();
  for (const auto& owned : job.sessions()) {
    if (owned == nullptr) continue;
    const Session& session = *owned;
    if (job.phase() == JobPhase::kAttaching) {
      if (session.memory == nullptr) continue;  // waits for elixird alone
      const auto filled =
          ranks_that(job, session, [](const Session& s) { return s.memory == nullptr; });
      if (!missing.empty()) {
        add(session, fmt::format("{} of {} ranks of this node to attach", missing.size(),
                                 job.local_ranks()));
      } else if (!filled.empty()) {
        add(session, fmt::format("the memory of {}", named(filled)));
      }
    } else if (session.await_ready_id && job.phase() == JobPhase::kLoading) {
      add(session, "initial weights to be loaded");
    } else if (session.await_ready_id && session.awaits_all_ranks) {
      const auto out = ranks_that(
          job, session, [](const Session& s) { return !s.await_ready_id || !s.awaits_all_ranks; });
      if (!out.empty()) add(session, fmt::format("{} in the same call", named(out)));
    } else if (std::optional<RankWait> said = said_wait(job, session)) {
      waits.push_back(*std::move(said));
    } else if (job.phase() == JobPhase::kTraining) {
      const uint32_t posted = machine.posted_step(session.local_rank);
      const auto behind = ranks_that(job, session, [&](const Session& s) {
        return machine.posted_step(s.local_rank) < posted;
      });
      // It need not be waiting: it may be computing the next step. It will be.
      if (!behind.empty() && posted > machine.committed_step()) {
        add(session, fmt::format("step {} of {}", posted, named(behind)));
      }
    }
  }
  return waits;
}

void say_who_waits(const Job& job, int64_t now_ns) {
  for (const RankWait& wait : waits_of(job)) {
    int64_t& logged_ns = job.sessions()[wait.local_rank]->wait_logged_ns;
    const int64_t waited_ns = now_ns - wait.since_ns;
    const bool told = wait.since_ns <= logged_ns && now_ns - logged_ns < kAgainNs;
    if (waited_ns < kFirstNs || told) continue;
    logged_ns = now_ns;
    log_info("waiting", "job='{}' rank={} for='{}' seconds={}", job.options().name, wait.rank,
             wait.for_what, waited_ns / 1'000'000'000);
  }
}

}  // namespace elixir::daemon
