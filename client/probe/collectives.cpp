#include "client/probe/collectives.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/subprocess.h"
#include "base/throw_error.h"
#include "client/collectives/connect_ranks.h"
#include "client/ranks/rank_environment.h"
#include "client/ranks/read_launch_environment.h"

namespace elixir::probe {
namespace {

constexpr double kMostSeconds = 120;
constexpr int kRounds = 5;  // the best counts: what else runs only takes away

Result<pid_t> start_rank(const Launch& launch, uint32_t rank, bool on_gpus, int stdout_fd) {
  std::vector<std::string> environment = rank_environment(launch, rank);
  environment.push_back("ELIXIR_RENDEZVOUS_TIMEOUT_S=60");
  environment.push_back("NCCL_DEBUG_FILE=/dev/stderr");  // not among rank 0's figures
  return spawn({.argv = {program_folder() + "/" + kRankProgram, kRankFlag, "--device",
                         on_gpus ? "cuda" : "cpu"},
                .extra_environment = std::move(environment),
                .stdout_fd = stdout_fd,
                .parent_death_signal = SIGKILL});
}

// Ends those that are left, and takes leave of them.
void end_all(const std::vector<pid_t>& children) {
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) {
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

// Until all have ended well. When one has not, the others would wait for it.
Status await(std::vector<pid_t> children) {
  const int64_t begin_ns = monotonic_ns();
  while (!children.empty()) {
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (::waitpid(children[i], &status, WNOHANG) != children[i]) continue;
      children.erase(children.begin() + static_cast<ptrdiff_t>(i--));
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      end_all(children);
      return error(Code::kUnavailable, "a rank of the all-gather ended with {}, see above",
                   WIFEXITED(status) ? fmt::format("code {}", WEXITSTATUS(status))
                                     : fmt::format("signal {}", WTERMSIG(status)));
    }
    if (seconds_since(begin_ns) > kMostSeconds) {
      end_all(children);
      return error(Code::kTimedOut, "the all-gather did not end within {} s", kMostSeconds);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Status();
}

}  // namespace

Result<double> measure_collectives(uint32_t ranks, bool on_gpus) {
  const std::string program = program_folder() + "/" + kRankProgram;
  if (::access(program.c_str(), X_OK) != 0) {
    return error(Code::kUnavailable, "{} does not exist", program);
  }
  const Result<uint16_t> port = free_port();
  if (!port.ok()) return port.status();
  Launch launch;
  launch.id = new_launch_id();
  launch.ranks = ranks;
  launch.master_port = *port;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "a pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::vector<pid_t> children;
  Status failed;
  for (uint32_t rank = 0; rank < ranks && failed.ok(); ++rank) {
    const Result<pid_t> child =
        start_rank(launch, rank, on_gpus, rank == 0 ? write_end.get() : STDERR_FILENO);
    failed = child.status();
    if (child.ok()) children.push_back(*child);
  }
  write_end.reset();
  if (failed.ok()) {
    failed = await(children);
  } else {
    end_all(children);
  }
  if (!failed.ok()) return failed;
  const std::string output = read_all(read_end.get());  // a line, which the pipe holds
  double gb_s = 0;
  const auto [end, problem] = std::from_chars(output.data(), output.data() + output.size(), gb_s);
  if (problem != std::errc() || !(gb_s > 0)) {
    return error(Code::kInternal, "the all-gather told no rate");
  }
  return gb_s;
}

void run_collective_rank(bool on_gpu) {
  const LaunchEnvironment environment = value_or_throw(read_launch_environment());
  const c10::Device where(on_gpu ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
  const PlacedDevice placed = make_device(where, environment.local_rank, {});
  const ConnectedRanks ranks = connect_ranks(environment, placed);
  Device& device = *placed.device;
  const uint64_t shard_numel = kGatheredBytes / 2 / ranks.group->size();
  std::byte* const block = device.allocate(2 * shard_numel * ranks.group->size(),
                                           "a chunk to gather", "end other programs");
  const DeviceEvent done = device.create_event();
  double best_s = 0;
  for (int round = 0; round <= kRounds; ++round) {  // the first makes connections
    ranks.group->barrier();
    const int64_t begin_ns = monotonic_ns();
    ranks.group->all_gather(block, shard_numel, ComputeType::kBf16)->wait();
    device.record(done, Stream::kCompute);
    device.synchronize(done);
    ranks.group->barrier();  // the slowest counts
    const double seconds = seconds_since(begin_ns);
    best_s = round <= 1 ? seconds : std::min(best_s, seconds);
  }
  const double bytes = 2.0 * static_cast<double>(shard_numel * ranks.group->size());
  if (environment.rank == 0) std::cout << fmt::format("{}\n", 1e-9 * bytes / best_s) << std::flush;
}

}  // namespace elixir::probe
