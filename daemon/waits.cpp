#include "daemon/waits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace elixir::daemon {
namespace {

constexpr size_t kMostNamed = 8;

std::string named(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i]);
  }
  if (ranks.size() > kMostNamed) text += fmt::format(" and {} more", ranks.size() - kMostNamed);
  return text;
}

}  // namespace

std::vector<RankWait> waits_of(const Job& job) {
  std::vector<RankWait> waits;
  const JobMachine& machine = job.machine();
  if (job.phase() == JobPhase::kEnding) return waits;
  const auto add = [&](const Session& session, std::string what) {
    waits.push_back({session.rank, session.local_rank, std::move(what), session.moved_ns});
  };
  const auto others_that = [&job](const Session& session, const auto& lack) {
    std::vector<uint32_t> ranks;
    for (const auto& other : job.sessions()) {
      if (other != nullptr && other.get() != &session && lack(*other)) ranks.push_back(other->rank);
    }
    return ranks;
  };
  const std::vector<uint32_t> missing = machine.missing_ranks();
  for (const auto& owned : job.sessions()) {
    if (owned == nullptr) continue;
    const Session& session = *owned;
    if (job.phase() == JobPhase::kAttaching) {
      if (session.memory == nullptr) continue;  // waits for elixird alone
      const auto filled =
          others_that(session, [](const Session& s) { return s.memory == nullptr; });
      if (!missing.empty()) {
        add(session, fmt::format("{} of {} ranks of this node to attach", missing.size(),
                                 job.local_ranks()));
      } else if (!filled.empty()) {
        add(session, fmt::format("the memory of {}", named(filled)));
      }
    } else if (session.await_ready_id && job.phase() == JobPhase::kLoading) {
      add(session, "initial weights to be loaded");
    } else if (session.await_ready_id && session.awaits_all_ranks) {
      const auto out = others_that(
          session, [](const Session& s) { return !s.await_ready_id || !s.awaits_all_ranks; });
      if (!out.empty()) add(session, fmt::format("{} in the same call", named(out)));
    } else if (job.phase() == JobPhase::kTraining) {
      const uint32_t posted = machine.posted_step(session.local_rank);
      const auto behind = others_that(
          session, [&](const Session& s) { return machine.posted_step(s.local_rank) < posted; });
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
    const double waited_s = static_cast<double>(now_ns - wait.since_ns) * 1e-9;
    if (!job.sessions()[wait.local_rank]->wait_notes.due(waited_s)) continue;
    log_info("waiting", "job='{}' rank={} for='{}' seconds={:.0f}", job.options().name, wait.rank,
             wait.for_what, waited_s);
  }
}

}  // namespace elixir::daemon
