#include "client/train/launch_environment.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/clock.h"

namespace elixir {
namespace {

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Names {
  const char* starter;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr std::array<Names, 3> kStarters = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
}};

Status read_number(const char* name, uint32_t fallback, uint32_t* value) {
  const std::string text = text_of(name);
  if (text.empty()) {
    *value = fallback;
    return Status();
  }
  char* end = nullptr;
  errno = 0;
  const unsigned long number = std::strtoul(text.c_str(), &end, 10);
  if (errno != 0 || *end != '\0' || text[0] == '-' || number > UINT32_MAX) {
    return error(Code::kInvalidArgument, "the environment variable {}='{}' is not a number", name,
                 text);
  }
  *value = static_cast<uint32_t>(number);
  return Status();
}

std::string job_of(const std::string& starter) {
  if (const std::string job = text_of("ELIXIR_JOB"); !job.empty()) return job;
  if (starter == "torchrun") {
    return "torchrun:" + text_of("MASTER_ADDR") + ":" + text_of("MASTER_PORT") + ":" +
           text_of("TORCHELASTIC_RUN_ID") + ":" + text_of("TORCHELASTIC_RESTART_COUNT");
  }
  if (starter == "slurm") {
    return "slurm:" + text_of("SLURM_JOB_ID") + "." + text_of("SLURM_STEP_ID") + ":" +
           text_of("SLURM_RESTART_COUNT");
  }
  if (starter == "openmpi") {
    return "openmpi:" + text_of("PMIX_NAMESPACE") + ":" + text_of("OMPI_MCA_ess_base_jobid");
  }
  return "alone:" + std::to_string(::getpid()) + ":" + std::to_string(monotonic_ns());
}

// Slurm sets its variables in every shell of an allocation; without a task number they say nothing.
bool present(const Names& names) {
  return !text_of(names.rank).empty() && !text_of(names.world_size).empty();
}

}  // namespace

Result<LaunchEnvironment> read_launch_environment() {
  LaunchEnvironment result;
  result.starter = "alone";
  for (const Names& names : kStarters) {
    if (!present(names)) continue;
    result.starter = names.starter;
    ELIXIR_RETURN_IF_ERROR(read_number(names.rank, 0, &result.rank));
    ELIXIR_RETURN_IF_ERROR(read_number(names.world_size, 1, &result.world_size));
    ELIXIR_RETURN_IF_ERROR(read_number(names.local_rank, result.rank, &result.local_rank));
    ELIXIR_RETURN_IF_ERROR(
        read_number(names.local_world_size, result.world_size, &result.local_world_size));
    break;
  }
  uint32_t nodes = 1;
  ELIXIR_RETURN_IF_ERROR(read_number("SLURM_STEP_NUM_NODES", 1, &nodes));
  if (result.starter == "slurm" && nodes > 1) {
    return error(Code::kInvalidArgument,
                 "Slurm started this step on {} nodes, and a job's ranks must be on one: use srun "
                 "--nodes=1",
                 nodes);
  }
  if (result.rank >= result.world_size || result.local_rank >= result.local_world_size ||
      result.local_world_size > result.world_size) {
    return error(
        Code::kInvalidArgument,
        "{} says rank {} of {} and local rank {} of {}: a rank must be below its number of "
        "ranks; start the program with elixir-run or unset RANK and WORLD_SIZE",
        result.starter, result.rank, result.world_size, result.local_rank, result.local_world_size);
  }
  result.job = job_of(result.starter);
  return result;
}

}  // namespace elixir
