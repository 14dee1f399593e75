#pragma once

#include <cstdint>
#include <span>

namespace elixir::fuzz {

struct ScheduleCounts {
  uint64_t schedules = 0, operations = 0;
  // Finished steps, and skipped steps of both jobs.
  uint64_t honest_steps = 0, hostile_steps = 0, skipped = 0;
  uint64_t honest_deaths = 0, honest_goodbyes = 0;    // ends of the honest jobs
  uint64_t hostile_faults = 0, hostile_goodbyes = 0;  // ends of the hostile jobs by themselves
};

// Two jobs of one elixird. The trainers of one are honest, but may die; the other's write anything.
// The bytes say how both jobs are set up, and then which events happen in which order. An event is
// a store of a rank, a doorbell or its loss, a tick, a worker's slice, the end of an activity, a
// goodbye, or a death. At the end, all pending work is done.
//
// The invariants of FuzzedJob hold after each operation. At the end, every step of an honest job
// that nobody left has its reference's bits. A hostile job has continued or ended by a fault. Equal
// bytes give an equal course.
//
// Throws Violation, or aborts if the product itself found the bug.
void run_schedule(std::span<const uint8_t> bytes, ScheduleCounts* counts);

}  // namespace elixir::fuzz
