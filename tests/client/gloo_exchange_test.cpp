// CollectiveExchange over Gloo's connections: the numbers and the order are those that
// collective_exchange_test finds over a group of threads.

#include "base/throw_error.h"
#include "tests/client/collective_ranks.h"
#include "tests/client/exchange_case.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

class GlooRank final : public RankGroup {
 public:
  explicit GlooRank(const LaunchEnvironment& environment)
      : rendezvous_(value_or_throw(Rendezvous::join(environment))),
        group_(value_or_throw(connect_group(*rendezvous_))) {}

  CollectiveGroup& group() override { return *group_; }
  Status liveness() override { return rendezvous_->watch().status(); }

 private:
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<CollectiveGroup> group_;
};

class GlooExchangeTest : public WithElixird {};

TEST_F(GlooExchangeTest, ChunksAreTheReferenceAfterEveryStep) {
  const ExchangeCase cases[] = {
      {.ranks = 3},
      {.ranks = 2, .rules = {.accumulate = 2}, .micro_steps = {2, 2, 1, 3, 2}},
      {.ranks = 2, .cpu_chunks = 2, .gpu_chunks = 2, .micro_steps = {1, 2, 1, 3}},
      {.ranks = 2, .micro_steps = {1, 1, 1}, .discards_in = 2}};
  for (const ExchangeCase& of : cases) {
    const uint16_t port = unused_port();
    const ExchangeOutcome outcome = run_lazily(of, [&of, port](uint32_t rank) {
      return std::make_unique<GlooRank>(environment_of(rank, of.ranks, port));
    });
    EXPECT_THAT(outcome.wrong, IsEmpty());
    EXPECT_GT(outcome.compared, 0u);
  }
}

}  // namespace
}  // namespace elixir::test
