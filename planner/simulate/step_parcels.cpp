// Activations that go to host memory and come back in a simulated step.

#include <algorithm>

#include "base/region_plan.h"
#include "planner/simulate/step_simulation.h"

namespace elixir::planner {

// Puts what regions before this operator send, and gets what its own region has sent. False: the
// compute stream waits for a copy.
bool StepSimulation::parcels_let(uint32_t next_operator) {
  if (model_.parcels.empty()) return true;
  if (!put_parcels(next_operator)) return false;
  // In backward the last parcel of a pass comes first.
  const auto n = static_cast<uint32_t>(model_.parcels.size()), of_pass = model_.parcels_of_pass;
  while (next_get_ < n) {
    const uint32_t pass = next_get_ / of_pass;
    const uint32_t parcel = pass * of_pass + (of_pass - 1 - next_get_ % of_pass);
    if (model_.parcels[parcel].get_before > next_operator) break;
    if (parcels_[parcel] == Parcel::kAway) push_parcel(parcel, HostMemory::kUp);
    if (parcels_[parcel] != Parcel::kHere) return false;
    ++next_get_;
    const bool first = parcel % of_pass == 0;
    if (!first && parcels_[parcel - 1] == Parcel::kAway) push_parcel(parcel - 1, HostMemory::kUp);
  }
  return true;
}

bool StepSimulation::put_parcels(uint32_t next_operator) {
  const auto n = static_cast<uint32_t>(model_.parcels.size()), of_pass = model_.parcels_of_pass;
  while (next_put_ < n && model_.parcels[next_put_].put_after < next_operator) {
    const bool first = next_put_ % of_pass == 0, last = next_put_ % of_pass == of_pass - 1;
    if (!first && parcels_[next_put_ - 1] == Parcel::kGoing) return false;
    if (!last) push_parcel(next_put_, HostMemory::kDown);
    ++next_put_;
  }
  return true;
}

void StepSimulation::push_parcel(uint32_t parcel, HostMemory::User direction) {
  const bool up = direction == HostMemory::kUp;
  parcels_[parcel] = up ? Parcel::kComing : Parcel::kGoing;
  constexpr auto kPiece = static_cast<double>(kActivationPieceBytes);
  double left = model_.parcels[parcel].bytes;
  do {
    const double piece = std::min(left, kPiece);
    left -= piece;
    push_copy(direction,
              {.kind = up ? Job::Kind::kKeepUp : Job::Kind::kKeepDown,
               .chunk = parcel,
               .amount = model_.ranks * piece,
               .completes = left <= 0},
              1);
  } while (left > 0);
}

}  // namespace elixir::planner
