#pragma once

#include <cstdint>
#include <span>

namespace elixir::fuzz {

struct ScheduleCounts {
  uint64_t schedules = 0, operations = 0;
  uint64_t honest_steps = 0, hostile_steps = 0, skipped = 0;  // finished; of all, skipped
  uint64_t honest_deaths = 0, honest_goodbyes = 0;            // ends of the honest jobs
  uint64_t hostile_faults = 0, hostile_goodbyes = 0;          // of the hostile ones by themselves
};

// Two jobs of one elixird: the trainers of one are honest, but may die; the other's write what they
// like. The bytes say how both are set up, then what happens in which order: a store of a rank, a
// doorbell or its loss, a tick, a worker's slice, the end of an activity, a goodbye, a death. In
// the end everything that is under way happens. After each operation the invariants of FuzzedJob
// hold; in the end every step of an honest job that nobody left has its reference's bits, and a
// hostile job has gone on or ended by a fault. The same bytes, the same course.
//
// Throws Violation, or aborts where the product itself found the bug.
void run_schedule(std::span<const uint8_t> bytes, ScheduleCounts* counts);

}  // namespace elixir::fuzz
