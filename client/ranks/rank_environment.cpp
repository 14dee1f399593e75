#include "client/ranks/rank_environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "client/ranks/compute_threads.h"
#include "client/ranks/openmp_wait.h"

namespace elixir {
namespace {}  // namespace

std::string new_launch_id() { return fmt::format("run-{}-{:x}", ::getpid(), monotonic_ns()); }

Result<uint16_t> free_port() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket.valid() || ::bind(socket.get(), generic, length) != 0 ||
      ::getsockname(socket.get(), generic, &length) != 0) {
    return errno_status(Code::kInternal, "no free port on 127.0.0.1");
  }
  return ntohs(address.sin_port);
}

std::vector<std::string> rank_environment(const Launch& launch, uint32_t local_rank) {
  ELIXIR_CHECK(local_rank < launch.ranks, "rank {} of {} on this node", local_rank, launch.ranks);
  const uint32_t rank = launch.first_rank() + local_rank;
  std::vector<std::string> result = {
      fmt::format("RANK={}", rank),
      fmt::format("LOCAL_RANK={}", local_rank),
      fmt::format("ROLE_RANK={}", rank),
      fmt::format("WORLD_SIZE={}", launch.all_ranks()),
      fmt::format("LOCAL_WORLD_SIZE={}", launch.ranks),
      fmt::format("ROLE_WORLD_SIZE={}", launch.all_ranks()),
      fmt::format("GROUP_RANK={}", launch.node_rank),
      fmt::format("GROUP_WORLD_SIZE={}", launch.nodes),
      "ROLE_NAME=default",
      "MASTER_ADDR=" + launch.master_address,
      fmt::format("MASTER_PORT={}", launch.master_port),
      "TORCHELASTIC_USE_AGENT_STORE=False",
      "TORCHELASTIC_RUN_ID=" + launch.id,
      fmt::format("TORCHELASTIC_RESTART_COUNT={}", launch.attempt),
      fmt::format("TORCHELASTIC_MAX_RESTARTS={}", launch.max_restarts),
      "ELIXIR_JOB=" + launch.job(),
      "ELIXIR_RUNTIME_DIR=" + launch.runtime_path,
  };
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const uint32_t threads = compute_threads(0, launch.ranks);
    result.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  }
  // Python would keep what a rank prints until its buffer for a pipe is full.
  if (std::getenv("PYTHONUNBUFFERED") == nullptr) result.emplace_back("PYTHONUNBUFFERED=1");
  if (std::string wait = openmp_wait_setting(); !wait.empty()) result.push_back(std::move(wait));
  return result;
}

}  // namespace elixir
