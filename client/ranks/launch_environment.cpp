#include "client/ranks/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/host_memory.h"
#include "client/ranks/rank_environment.h"
#include "client/ranks/read_launch_environment.h"
#include "client/ranks/slurm_lists.h"
#include "client/ranks/tcp.h"

namespace elixir {
namespace {

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Starter {
  const char* name;
  // It is this one where both are set. (Slurm sets its variables in every shell of an allocation:
  // without a number of tasks they say nothing.)
  std::array<const char*, 2> shown_by;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  // What tells its starts apart.
  std::array<const char*, 4> start;
  bool start_gives_port;  // where MASTER_PORT does not
  const char* program;    // that starts all ranks, for people
};

// The first that is shown is believed. Slurm comes behind those that are started within it, and
// before what srun sets beside its own variables.
constexpr std::array<Starter, 7> kStarters = {{
    {"torchrun",
     {"RANK", "WORLD_SIZE"},
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
     false,
     "elixir-run or torchrun"},
    {"openmpi",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK"},
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     true,
     "mpirun"},
    {"mvapich",
     {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"},
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     {"MASTER_ADDR", "MASTER_PORT"},
     false,
     "mpiexec"},
    {"pals",
     {"PALS_RANKID", "PALS_RANKID"},
     "PALS_RANKID",
     "PMI_SIZE",
     "PALS_LOCAL_RANKID",
     "PALS_LOCAL_SIZE",
     {"PALS_APID"},
     true,
     "mpiexec"},
    {"hydra",
     {"PMI_RANK", "MPI_LOCALRANKID"},
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"MASTER_ADDR", "MASTER_PORT"},
     false,
     "mpiexec"},
    {"slurm",
     {"SLURM_PROCID", "SLURM_NTASKS"},
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     "SLURM_NTASKS_PER_NODE",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
     true,
     "srun"},
    {"pmi",
     {"PMI_RANK", "PMI_RANK"},
     "PMI_RANK",
     "PMI_SIZE",
     "PMI_LOCAL_RANK",
     "PMI_LOCAL_SIZE",
     {"MASTER_ADDR", "MASTER_PORT"},
     false,
     "mpiexec"},
}};

bool is_set(const char* name) { return !text_of(name).empty(); }

bool is_shown(const Starter& starter) {
  return is_set(starter.shown_by[0]) && is_set(starter.shown_by[1]);
}

bool is_torchrun(const Starter& starter) { return std::string_view(starter.name) == "torchrun"; }
bool is_slurm(const Starter& starter) { return std::string_view(starter.name) == "slurm"; }

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

std::string start_of(const Starter& starter) {
  std::string start;
  for (const char* name : starter.start) {
    if (name != nullptr) start += ":" + text_of(name);
  }
  return start;
}

bool says_nothing(const Starter& starter) {
  return start_of(starter).find_first_not_of(':') == std::string::npos;
}

// The same on all ranks, and on no other job's.
Result<std::string> job_of(const Starter* starter, uint32_t ranks) {
  if (std::string job = text_of("ELIXIR_JOB"); !job.empty()) return job;
  const bool nothing = starter == nullptr || says_nothing(*starter);
  if (nothing && (starter == nullptr || ranks == 1)) {
    return "alone:" + std::to_string(::getpid()) + ":" + std::to_string(monotonic_ns());
  }
  if (nothing && !starter->start_gives_port && !is_torchrun(*starter)) {
    return error(Code::kInvalidArgument,
                 "{} says that this is rank {} of {}, and nothing says which start of the program "
                 "it belongs to: give all ranks the same MASTER_ADDR and MASTER_PORT (of mpiexec: "
                 "-genv MASTER_PORT 29500), or ELIXIR_JOB, a word of that start alone",
                 starter->rank, text_of(starter->rank), text_of(starter->world_size));
  }
  return starter->name + start_of(*starter);
}

// What changes when the ranks are started again is no part of it.
std::string launch_of(const Starter* starter, const LaunchEnvironment& environment) {
  static const std::string kAlone = new_launch_id();  // all optimizers of a process share it
  if (starter == nullptr) return kAlone;
  if (is_slurm(*starter)) return slurm_step();
  const std::string where = text_of("SLURM_JOB_ID").empty() ? "" : " in " + slurm_step();
  if (is_torchrun(*starter)) {
    const std::string run = text_of("TORCHELASTIC_RUN_ID");
    if (run.empty()) return environment.job + where;  // started by hand
    // An id may be chosen twice ("none" is the default), and what differs then is the port, which
    // the agent keeps, or the control group, which its ranks have from it.
    const std::string port = run == "none" ? ":" + text_of("MASTER_PORT") : "";
    return fmt::format("torchrun:{}{}{} in cgroup {}", run, port, where, memory_group());
  }
  if (!says_nothing(*starter)) return starter->name + start_of(*starter) + where;
  return environment.world_size == 1 ? kAlone : environment.job + where;
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
Status derive_port(const Starter& starter, LaunchEnvironment* environment) {
  uint32_t number = 0;
  if (is_slurm(starter)) {
    uint32_t step = 0;
    ELIXIR_RETURN_IF_ERROR(read_number("SLURM_JOB_ID", 0, &number));
    ELIXIR_RETURN_IF_ERROR(read_number("SLURM_STEP_ID", 0, &step));
    number += 131 * step;
  } else if (starter.start_gives_port) {
    number = hash_of(start_of(starter));
  } else {
    return Status();  // 0: none is known
  }
  environment->master_port = static_cast<uint16_t>(kFirstDerivedPort + number % kDerivedPorts);
  return Status();
}

Status read_master(const Starter* starter, LaunchEnvironment* environment) {
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
                 "the environment variable MASTER_PORT='{}' is not a TCP port: the largest is {}",
                 port, UINT16_MAX);
  }
  environment->master_port = static_cast<uint16_t>(port);
  environment->starter_hosts_store =
      environment->starter == "torchrun" && text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return port != 0 || starter == nullptr ? Status() : derive_port(*starter, environment);
}

// Reads what must be there.
Status require_number(const Starter& starter, const char* name, uint32_t* value) {
  if (is_set(name)) return read_number(name, 0, value);
  return error(Code::kInvalidArgument,
               "{}={} says that a starter of several ranks ({}) started this one, and {} is not "
               "set: start the program with elixir-run, torchrun, srun or mpirun, or set RANK, "
               "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
               starter.shown_by[0], text_of(starter.shown_by[0]), starter.name, name);
}

// Whoever says which of its node's ranks this is: the starter, or one of which a script has taken
// the rank over. Null: nobody.
const Starter* who_says_local(const Starter& starter, const LaunchEnvironment& environment) {
  const auto says = [&](const Starter& one) {
    const bool known = is_set(one.local_rank) && (is_slurm(one) || is_set(one.local_world_size));
    return known && is_shown(one) && text_of(one.rank) == std::to_string(environment.rank) &&
           text_of(one.world_size) == std::to_string(environment.world_size);
  };
  if (says(starter)) return &starter;
  const auto found = std::find_if(kStarters.begin(), kStarters.end(), says);
  return found == kStarters.end() ? nullptr : &*found;
}

Status read_local_rank(const Starter& starter, LaunchEnvironment* environment) {
  if (const Starter* const local = who_says_local(starter, *environment)) {
    ELIXIR_RETURN_IF_ERROR(
        read_number(local->local_rank, environment->rank, &environment->local_rank));
    ELIXIR_RETURN_IF_ERROR(read_number(local->local_world_size, environment->world_size,
                                       &environment->local_world_size));
    return is_slurm(*local) ? read_slurm_node(environment) : Status();
  }
  environment->local_rank = environment->rank;
  environment->local_world_size = environment->world_size;
  const std::string master = text_of("MASTER_ADDR");
  if (is_torchrun(starter) && (master.empty() || master == "localhost" || is_loopback(master)))
    return Status();
  if (environment->world_size == 1) return Status();
  return error(Code::kInvalidArgument,
               "{}={} and {}={} say which rank this is, and nothing says which of its node's: set "
               "{} and {} on every rank",
               starter.rank, environment->rank, starter.world_size, environment->world_size,
               starter.local_rank, starter.local_world_size);
}

// Of a job of several ranks.
std::string ranks_said(const Starter& starter, uint32_t ranks) {
  return fmt::format(
      "{}={} and {}={} in the environment say that there are {} ranks: start all of them with {}, "
      "or unset these variables to run one alone",
      starter.rank, text_of(starter.rank), starter.world_size, text_of(starter.world_size), ranks,
      starter.program);
}

}  // namespace

Result<LaunchEnvironment> read_launch_environment() {
  LaunchEnvironment result;
  const auto shown = std::find_if(kStarters.begin(), kStarters.end(), is_shown);
  const Starter* const starter = shown == kStarters.end() ? nullptr : &*shown;
  result.starter = starter == nullptr ? "alone" : starter->name;
  if (starter == nullptr && is_set("PMIX_RANK")) {
    return error(
        Code::kInvalidArgument,
        "PMIX_RANK={} says that a starter of several ranks started this one, and it does "
        "not say of how many: start the program with elixir-run, torchrun, srun or mpirun, "
        "or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
        text_of("PMIX_RANK"));
  }
  if (starter != nullptr) {
    ELIXIR_RETURN_IF_ERROR(require_number(*starter, starter->rank, &result.rank));
    ELIXIR_RETURN_IF_ERROR(require_number(*starter, starter->world_size, &result.world_size));
    ELIXIR_RETURN_IF_ERROR(read_local_rank(*starter, &result));
  }
  if (result.rank >= result.world_size || result.local_rank >= result.local_world_size ||
      result.local_world_size > result.world_size) {
    return error(
        Code::kInvalidArgument,
        "{} says rank {} of {} and local rank {} of {}: a rank must be below its number of "
        "ranks; start the program with elixir-run or unset {} and {}",
        result.starter, result.rank, result.world_size, result.local_rank, result.local_world_size,
        starter->rank, starter->world_size);
  }
  ELIXIR_RETURN_IF_ERROR(read_master(starter, &result));
  Result<std::string> job = job_of(starter, result.world_size);
  if (!job.ok()) return job.status();
  result.job = std::move(*job);
  result.launch = launch_of(starter, result);
  if (result.world_size > 1) result.ranks_said = ranks_said(*starter, result.world_size);
  return result;
}

}  // namespace elixir
