// Schedules of two jobs of elixird, one of them hostile: tests/fuzz/job/job_schedule.h.

#include "base/log.h"
#include "tests/fuzz/job/job_schedule.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  elixir::init_log("fuzz", elixir::LogLevel::kError);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  elixir::fuzz::ScheduleCounts counts;
  elixir::fuzz::run_schedule({data, size}, &counts);
  return 0;
}
