// How many spare slots a plan takes for early updates.

#include <algorithm>

#include "planner/search/first_that.h"
#include "planner/search/search.h"
#include "planner/search/step_of.h"

namespace elixir::planner {
namespace {

constexpr uint32_t kSpareSlotsGrid = 4;  // numbers of them that are simulated beside none

}  // namespace

// A number that is asked for, as far as there are chunks; one where updates are to be early.
uint32_t Search::least_spare_slots(const Candidate& candidate) const {
  return std::min(least_spare_slots_, shape_of(setting_, candidate).first_swing());
}

// That the node's host memory has room for, where they are not asked for by number. REQUIRES: with
// the least the host holds it.
uint32_t Search::most_spare_slots(const Candidate& candidate) const {
  const uint32_t least = least_spare_slots(candidate);
  const bool may_be_early = request_.policy == Policy::kElixir &&
                            request_.update.value_or(UpdateMode::kEarly) == UpdateMode::kEarly;
  if (!may_be_early || request_.layout.spare_slots) return least;
  Candidate more = candidate;
  const auto too_many = [&](uint32_t spare_slots) {
    more.spare_slots = spare_slots;
    return !host_holds(more);
  };
  const uint32_t chunks = shape_of(setting_, candidate).first_swing();
  return first_that(least + 1, chunks + 1, too_many) - 1;
}

Status Search::settle_spare_slots() {
  const uint32_t most = most_spare_slots(best_.candidate);
  const uint32_t least = least_spare_slots(best_.candidate);
  if (least == most) return Status();
  Status failure;
  const auto with_slots = [&](uint32_t spare_slots) -> Found {
    Candidate candidate = best_.candidate;
    candidate.spare_slots = spare_slots;
    const Result<StepTimes> times = times_of(candidate);
    if (times.ok()) return {candidate, *times};
    failure = times.status();
    return best_;
  };
  Found shortest = with_slots(least);
  for (uint64_t i = 0; i <= kSpareSlotsGrid; ++i) {
    const Found one =
        with_slots(static_cast<uint32_t>(least + i * (most - least) / kSpareSlotsGrid));
    if (one.times.step_s < shortest.times.step_s) shortest = one;
  }
  const double most_s = (1 + kFewerSlotsLoss) * shortest.times.step_s;
  const auto enough = [&](uint32_t slots) { return with_slots(slots).times.step_s <= most_s; };
  best_ = with_slots(first_that(least, shortest.candidate.spare_slots, enough));
  return failure;
}

}  // namespace elixir::planner
