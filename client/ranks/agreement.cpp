#include "client/ranks/agreement.h"

#include <algorithm>
#include <optional>
#include <string>

namespace elixir {
namespace {

constexpr size_t kMaxNamed = 4;

bool same_history(const Vote& a, const Vote& b) {
  return a.history == b.history && a.step == b.step;
}

bool same_terms(const Vote& a, const Vote& b) { return a.terms == b.terms; }

// Those that differ from the greater part, which `leader` is of; `first` is one of them.
struct Minority {
  std::string names;
  size_t leader = 0, first = 0;
};

std::optional<Minority> minority_of(std::span<const Vote> votes, std::span<const Member> members,
                                    bool (*same)(const Vote&, const Vote&)) {
  const auto followers = [&](const Vote& vote) {
    return std::count_if(votes.begin(), votes.end(),
                         [&](const Vote& other) { return same(vote, other); });
  };
  if (followers(votes[0]) == std::ssize(votes)) return std::nullopt;
  Minority found;
  for (size_t rank = 1; rank < votes.size(); ++rank) {
    if (followers(votes[rank]) > followers(votes[found.leader])) found.leader = rank;
  }
  size_t others = 0;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (same(votes[rank], votes[found.leader])) continue;
    if (others == 0) found.first = rank;
    if (others < kMaxNamed) found.names += (others == 0 ? "" : ", ") + members[rank].name();
    ++others;
  }
  if (others > kMaxNamed) found.names += fmt::format(" and {} more", others - kMaxNamed);
  return found;
}

}  // namespace

Status compare_votes(std::span<const Vote> votes, std::span<const Member> members) {
  if (const auto other = minority_of(votes, members, same_history)) {
    const Vote &first = votes[other->first], &leader = votes[other->leader];
    return error(
        Code::kProtocol,
        "{} did not make the same collectives as {}: step {} and {:016x} against step {} and "
        "{:016x}. Every rank must run the same operators and read parameters in the same order: "
        "see where the program takes another way on some ranks",
        other->names, members[other->leader].name(), first.step, first.history, leader.step,
        leader.history);
  }
  if (const auto other = minority_of(votes, members, same_terms)) {
    return error(Code::kProtocol,
                 "{} posted step {} with other hyperparameters than {}: learning rates, decays, "
                 "betas, loss scales and clipping must be the same on all ranks: see where the "
                 "program sets them",
                 other->names, votes[other->first].step, members[other->leader].name());
  }
  return Status();
}

}  // namespace elixir
