#include "client/train/agree_machine.h"

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/check.h"
#include "client/collectives/rendezvous.h"
#include "client/ranks/network_speed.h"
#include "client/tensors/torch_failure.h"
#include "planner/machine_json.h"

namespace elixir {
namespace {

// A node speaks by its first rank; the others say nothing.
std::string word_of(const Result<planner::Machine>& own, const LaunchEnvironment& environment) {
  if (!own.ok()) return own.status().message();
  if (environment.local_rank != 0) return "";
  planner::Machine machine = *own;
  if (machine.internode_gb_s == 0) machine.internode_gb_s = network_gb_s();
  return planner::to_json(machine);
}

Result<planner::Machine> slowest_of_all(const std::vector<std::string>& words) {
  std::optional<planner::Machine> slowest;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (words[rank].empty()) continue;
    if (words[rank][0] != '{') {
      return error(Code::kUnavailable, "rank {}: {}", rank, words[rank]);
    }
    Result<planner::Machine> machine = planner::machine_from_json(words[rank]);
    if (!machine.ok()) return machine;
    if (slowest) machine = planner::slowest_of(*slowest, *machine);
    if (!machine.ok()) return machine;
    slowest = std::move(*machine);
  }
  if (!slowest) return error(Code::kInternal, "no node has a first rank");
  return *slowest;
}

}  // namespace

Result<planner::Machine> agree_machine(const Result<planner::Machine>& own,
                                       const LaunchEnvironment& environment) {
  ELIXIR_CHECK(environment.world_size > 0 && environment.local_world_size > 0, "a job of {} ranks",
               environment.world_size);
  if (environment.one_node()) return own;
  LaunchEnvironment meeting = environment;
  meeting.job += "/plan";
  const Result<std::unique_ptr<Rendezvous>> ranks = Rendezvous::join(meeting);
  if (!ranks.ok()) return ranks.status();
  std::vector<std::string> words;
  try {
    c10d::Store& store = *(*ranks)->store();
    store.set(fmt::format("machine/{}", environment.rank), word_of(own, environment));
    std::vector<std::string> keys;
    for (uint32_t rank = 0; rank < environment.world_size; ++rank) {
      keys.push_back(fmt::format("machine/{}", rank));
    }
    for (const std::vector<uint8_t>& word : store.multiGet(keys)) {
      words.emplace_back(word.begin(), word.end());
    }
  } catch (const std::exception& failure) {
    return error(Code::kUnavailable, "the nodes could not agree on a plan: {}",
                 failure_text(failure));
  }
  ELIXIR_CHECK(words.size() == environment.world_size, "{} words of {} ranks", words.size(),
               environment.world_size);
  ELIXIR_RETURN_IF_ERROR((*ranks)->meet("planned"));
  Result<planner::Machine> node = slowest_of_all(words);
  if (!node.ok()) return node;
  if (node->internode_gb_s == 0) node->internode_gb_s = kAssumedInternodeGbS;
  return planner::with_gpus(*node, environment.world_size, environment.local_world_size);
}

}  // namespace elixir
