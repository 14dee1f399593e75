#include "client/exchange/collective_group.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/throw_error.h"
#include "client/ranks/agreement.h"

namespace elixir {

void CollectiveGroup::all_gather(std::span<const float> mine, std::span<float> all,
                                 uint32_t chunk) {
  ELIXIR_CHECK(all.size() == size() * mine.size(), "{} values of {} ranks with {} each", all.size(),
               size(), mine.size());
  std::memmove(all.data() + rank() * mine.size(), mine.data(), mine.size_bytes());
  gather_in_place({CollectiveKind::kValues, mine.size_bytes(), chunk},
                  reinterpret_cast<std::byte*>(all.data()));
}

double CollectiveGroup::mean(double mine) {
  double sum = 0;
  for (const double value : all_gather_values(mine)) sum += value;
  return sum / size();
}

uint32_t CollectiveGroup::agree(uint32_t step, uint64_t hash, uint32_t flags, uint64_t terms) {
  const std::vector<Vote> votes = all_gather_values(Vote{hash, step, flags, terms});
  throw_if_error(compare_votes(votes, members()));
  uint32_t all_flags = 0;
  for (const Vote& vote : votes) all_flags |= vote.flags;
  return all_flags;
}

void CollectiveGroup::meet(CollectiveKind call, uint32_t step, uint64_t hash) {
  ELIXIR_CHECK(is_call(call), "ranks meet in {}", CollectiveSignature{call}.name());
  throw_if_error(compare_votes(all_gather_values(Vote{hash, step, 0, 0}, call), members()));
}

Status CollectiveGroup::await(Device& device, DeviceEvent done, double timeout_s) const {
  constexpr std::chrono::microseconds kPoll{50};
  const int64_t start_ns = monotonic_ns();
  while (!device.done(done)) {
    check();
    check_interrupt();
    if (seconds_since(start_ns) > timeout_s) {
      return error(
          Code::kTimedOut,
          "waited {:.0f} s for the device to finish a collective: a rank has not joined it, or "
          "ranks made different ones (ELIXIR_COLLECTIVE_TIMEOUT_S allows more)",
          timeout_s);
    }
    std::this_thread::sleep_for(kPoll);
  }
  return Status();
}

}  // namespace elixir
