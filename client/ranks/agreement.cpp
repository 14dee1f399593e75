#include "client/ranks/agreement.h"

#include <algorithm>
#include <string>

namespace elixir {
namespace {

constexpr size_t kMaxNamed = 4;

bool same(const Vote& a, const Vote& b) { return a.history == b.history && a.step == b.step; }

}  // namespace

Status compare_votes(std::span<const Vote> votes, std::span<const Member> members) {
  const auto followers = [&](const Vote& vote) {
    return std::count_if(votes.begin(), votes.end(),
                         [&](const Vote& other) { return same(vote, other); });
  };
  if (followers(votes[0]) == std::ssize(votes)) return Status();
  size_t leader = 0;
  for (size_t rank = 1; rank < votes.size(); ++rank) {
    if (followers(votes[rank]) > followers(votes[leader])) leader = rank;
  }
  std::string names;
  size_t others = 0, first = 0;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (same(votes[rank], votes[leader])) continue;
    if (others == 0) first = rank;
    if (others < kMaxNamed) names += (others == 0 ? "" : ", ") + members[rank].name();
    ++others;
  }
  if (others > kMaxNamed) names += fmt::format(" and {} more", others - kMaxNamed);
  return error(
      Code::kProtocol,
      "{} did not make the same collectives as {}: step {} and {:016x} against step {} and "
      "{:016x}. Every rank must run the same operators in the same order in every step: "
      "see where the program takes another way on some ranks",
      names, members[leader].name(), votes[first].step, votes[first].history, votes[leader].step,
      votes[leader].history);
}

}  // namespace elixir
