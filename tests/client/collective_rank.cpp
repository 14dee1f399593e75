// One rank of a job as a program, for tests over several nodes: meets the others as its starter's
// environment says, then all-gathers and reduce-scatters. `collective_rank ROUNDS`: says where it
// is every 200, prints "done" after the last; ends with the code of what went wrong.

#include <fmt/core.h>

#include <cstdlib>
#include <iostream>

#include "base/log.h"
#include "base/throw_error.h"
#include "client/collectives/connect_group.h"
#include "client/ranks/launch_environment.h"
#include "client/ranks/read_launch_environment.h"

namespace elixir {
namespace {

constexpr uint64_t kShard = 100'000;

void check_round(CollectiveGroup& group, uint32_t round) {
  std::vector<float> block(group.size() * kShard, static_cast<float>(group.rank() + round));
  auto* bytes = reinterpret_cast<std::byte*>(block.data());
  group.all_gather(bytes, kShard, ComputeType::kFp32)->wait();
  for (uint32_t rank = 0; rank < group.size(); ++rank) {
    ELIXIR_CHECK(block[(rank + 1) * kShard - 1] == static_cast<float>(rank + round), "all-gather");
  }
  group.reduce_scatter(bytes, kShard, ComputeType::kFp32)->wait();
  const auto expected = static_cast<float>(group.size() * (group.rank() + round));
  ELIXIR_CHECK(block[group.rank() * kShard] == expected, "reduce-scatter");
  group.agree(round, round, 0);
}

void run(uint32_t rounds) {
  const LaunchEnvironment environment = value_or_throw(read_launch_environment());
  const auto rendezvous = value_or_throw(Rendezvous::join(environment));
  const auto group = value_or_throw(connect_group(*rendezvous));
  std::cout << fmt::format("connected rank {} of {} at {}", group->rank(), group->size(),
                           rendezvous->address())
            << std::endl;
  for (uint32_t round = 0; round < rounds; ++round) {
    check_round(*group, round);
    if (round % 200 == 0) std::cout << "round " << round << std::endl;
  }
  std::cout << "done" << std::endl;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) try {
  elixir::init_log("collective_rank");
  elixir::run(argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 1);
} catch (const elixir::Error& failure) {
  std::cerr << "collective_rank: " << failure.what() << std::endl;
  return failure.exit_code();
}
