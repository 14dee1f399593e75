#include "client/ranks/launch_environment.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/clock.h"
#include "base/host_memory.h"
#include "client/ranks/rank_environment.h"
#include "client/ranks/read_launch_environment.h"
#include "client/ranks/slurm_lists.h"

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

std::string slurm_step() {
  return "slurm:" + text_of("SLURM_JOB_ID") + "." + text_of("SLURM_STEP_ID");
}

std::string openmpi_run() {
  return "openmpi:" + text_of("PMIX_NAMESPACE") + ":" + text_of("OMPI_MCA_ess_base_jobid");
}

std::string job_of(const std::string& starter) {
  if (const std::string job = text_of("ELIXIR_JOB"); !job.empty()) return job;
  if (starter == "torchrun") {
    return "torchrun:" + text_of("MASTER_ADDR") + ":" + text_of("MASTER_PORT") + ":" +
           text_of("TORCHELASTIC_RUN_ID") + ":" + text_of("TORCHELASTIC_RESTART_COUNT");
  }
  if (starter == "slurm") return slurm_step() + ":" + text_of("SLURM_RESTART_COUNT");
  if (starter == "openmpi") return openmpi_run();
  return "alone:" + std::to_string(::getpid()) + ":" + std::to_string(monotonic_ns());
}

// What changes when the ranks are started again is no part of it.
std::string launch_of(const LaunchEnvironment& environment) {
  if (environment.starter == "slurm") return slurm_step();
  const bool in_slurm = !text_of("SLURM_JOB_ID").empty();
  const std::string where = in_slurm ? " in " + slurm_step() : "";
  if (environment.starter == "openmpi") return openmpi_run() + where;
  if (environment.starter == "torchrun") {
    const std::string run = text_of("TORCHELASTIC_RUN_ID");
    if (run.empty()) return environment.job + where;  // started by hand
    // An id may be chosen twice ("none" is the default), and what differs then is the port, which
    // the agent keeps, or the control group, which its ranks have from it.
    const std::string port = run == "none" ? ":" + text_of("MASTER_PORT") : "";
    return fmt::format("torchrun:{}{}{} in cgroup {}", run, port, where, memory_group());
  }
  static const std::string kAlone = new_launch_id();  // all optimizers of a process share it
  return kAlone;
}

// Slurm knows how many tasks it has on each node; SLURM_NTASKS_PER_NODE is there only if asked for.
Status read_slurm_node(LaunchEnvironment* environment) {
  uint32_t nodes = 1, node = 0;
  ELIXIR_RETURN_IF_ERROR(read_number("SLURM_STEP_NUM_NODES", 1, &nodes));
  ELIXIR_RETURN_IF_ERROR(read_number("SLURM_NODEID", 0, &node));
  const std::string list = text_of("SLURM_STEP_TASKS_PER_NODE");
  if (const auto tasks = slurm_tasks_on_node(list, node)) {
    environment->local_world_size = *tasks;
  } else if (nodes > 1 && text_of("SLURM_NTASKS_PER_NODE").empty()) {
    return error(Code::kInvalidArgument,
                 "Slurm started this step on {} nodes, and SLURM_STEP_TASKS_PER_NODE='{}' does not "
                 "say how many of its {} tasks run on node {}: use srun --ntasks-per-node=N",
                 nodes, list, environment->world_size, node);
  }
  return Status();
}

// FNV-1a: the same on every node, whatever was compiled there.
uint32_t hash_of(const std::string& text) {
  uint32_t hash = 2166136261u;
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 16777619u;
  }
  return hash;
}

// Neighbouring Slurm jobs get different ports, and so do neighbouring steps of one.
Status derive_port(LaunchEnvironment* environment) {
  uint32_t number = 0;
  if (environment->starter == "slurm") {
    uint32_t step = 0;
    ELIXIR_RETURN_IF_ERROR(read_number("SLURM_JOB_ID", 0, &number));
    ELIXIR_RETURN_IF_ERROR(read_number("SLURM_STEP_ID", 0, &step));
    number += 131 * step;
  } else if (environment->starter == "openmpi") {
    number = hash_of(text_of("PMIX_NAMESPACE") + text_of("OMPI_MCA_ess_base_jobid"));
  } else {
    return Status();  // 0: torchrun always sets MASTER_PORT
  }
  environment->master_port = static_cast<uint16_t>(kFirstDerivedPort + number % kDerivedPorts);
  return Status();
}

Status read_master(LaunchEnvironment* environment) {
  environment->master_address = text_of("MASTER_ADDR");
  if (environment->master_address.empty() && environment->one_node()) {
    environment->master_address = "127.0.0.1";
  } else if (environment->master_address.empty() && environment->starter == "slurm") {
    // SLURM_LAUNCH_NODE_IPADDR comes last: it is where srun was called, which may be a login node.
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
      if (environment->master_address.empty()) {
        environment->master_address = first_slurm_host(text_of(name));
      }
    }
    if (environment->master_address.empty()) {
      environment->master_address = text_of("SLURM_LAUNCH_NODE_IPADDR");
    }
  }
  uint32_t port = 0;
  ELIXIR_RETURN_IF_ERROR(read_number("MASTER_PORT", 0, &port));
  if (port > UINT16_MAX) {
    return error(Code::kInvalidArgument,
                 "the environment variable MASTER_PORT='{}' is no TCP port: they end at {}", port,
                 UINT16_MAX);
  }
  environment->master_port = static_cast<uint16_t>(port);
  environment->starter_hosts_store =
      environment->starter == "torchrun" && text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return port != 0 ? Status() : derive_port(environment);
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
  if (result.starter == "slurm") ELIXIR_RETURN_IF_ERROR(read_slurm_node(&result));
  if (result.rank >= result.world_size || result.local_rank >= result.local_world_size ||
      result.local_world_size > result.world_size) {
    return error(
        Code::kInvalidArgument,
        "{} says rank {} of {} and local rank {} of {}: a rank must be below its number of "
        "ranks; start the program with elixir-run or unset RANK and WORLD_SIZE",
        result.starter, result.rank, result.world_size, result.local_rank, result.local_world_size);
  }
  ELIXIR_RETURN_IF_ERROR(read_master(&result));
  result.job = job_of(result.starter);
  result.launch = launch_of(result);
  return result;
}

}  // namespace elixir
