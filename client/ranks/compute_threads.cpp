#include "client/ranks/compute_threads.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace elixir {
namespace {

std::string_view setting_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// elixir-run sets torchrun's variables, too, and keeps the user's OMP_NUM_THREADS. Its ranks are
// known by their job, which begins with the name of the run (Launch::job()).
bool started_by_torchrun() {
  const std::string_view run = setting_of("TORCHELASTIC_RUN_ID"), job = setting_of("ELIXIR_JOB");
  const bool by_elixir_run = job.starts_with(run) && job.substr(run.size()).starts_with("-");
  return !run.empty() && !by_elixir_run;
}

// The first of "4,2", which are threads by level of nesting; 0: none is set.
uint32_t openmp_threads() {
  const std::string_view text = setting_of("OMP_NUM_THREADS");
  uint32_t threads = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool whole = end == text.data() + text.size() || *end == ',';
  return failure == std::errc() && whole ? threads : 0;
}

}  // namespace

uint32_t compute_threads(uint32_t asked, uint32_t local_ranks, uint32_t parallel) {
  if (asked > 0) return asked;
  const uint32_t set = openmp_threads();
  if (set > 1 || (set == 1 && !started_by_torchrun())) return set;
  return std::max(1u, parallel / std::max(1u, local_ranks));
}

}  // namespace elixir
