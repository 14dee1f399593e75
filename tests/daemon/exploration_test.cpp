// Every order of what can happen to a small job: job_model.h.
//
//   ELIXIR_EVERY_CASE=1  of two chunks in every row; else of one in the largest rows

#include <set>
#include <string_view>
#include <unordered_set>

#include "tests/daemon/job_model.h"
#include "tests/support/every_case.h"
#include "tests/support/matchers.h"

namespace elixir::testing {
namespace {

const uint32_t kMostChunks = every_case() ? 2 : 1;

// All states that are reachable, each once, in the order in which they were found first.
class Exploration {
 public:
  explicit Exploration(const ModelOptions& options)
      : model_(options), seen_(1 << 16, Hash{&found_}, Equal{&found_}) {}

  // What breaks an invariant, with the events that led there; "": nothing does.
  std::string run() {
    add(model_.start(), 0, {});
    for (uint32_t at = 0; at < found_.size(); ++at) {
      if (const std::string violation = leave(at); !violation.empty()) {
        return fmt::format("{}\n{}", violation, way_to(at));
      }
    }
    return "";
  }

  size_t states() const { return found_.size(); }
  uint64_t events() const { return events_; }
  uint64_t ends() const { return ends_; }
  // Of each chunk's last sums, in jobs that end without a fault.
  const std::set<std::array<uint8_t, ModelState::kChunks>>& sum_orders() const {
    return sum_orders_;
  }

 private:
  struct Found {
    ModelState state;
    uint32_t from;
    ModelEvent by;
  };
  struct Hash {
    const std::vector<Found>* found;
    size_t operator()(uint32_t at) const {
      // Without padding: all members but the first two are bytes.
      const ModelState& state = (*found)[at].state;
      return std::hash<std::string_view>()({reinterpret_cast<const char*>(&state), sizeof state});
    }
  };
  struct Equal {
    const std::vector<Found>* found;
    bool operator()(uint32_t a, uint32_t b) const { return (*found)[a].state == (*found)[b].state; }
  };

  void add(const ModelState& state, uint32_t from, ModelEvent by) {
    found_.push_back({state, from, by});
    if (!seen_.insert(static_cast<uint32_t>(found_.size() - 1)).second) found_.pop_back();
  }

  // Each event in turn. One that must come has to lead on, or the job waits for ever.
  std::string leave(uint32_t at) {
    const ModelState state = found_[at].state;
    if (state.over) ++ends_;
    if (state.over && !model_.machine(state).fault()) sum_orders_.insert(state.sum_order);
    bool goes_on = state.over;
    for (const ModelEvent& event : model_.events(state)) {
      ++events_;
      try {
        const ModelState next = model_.after(state, event);
        goes_on = goes_on || (event.comes() && next != state);
        add(next, at, event);
      } catch (const ModelViolation& violation) {
        return fmt::format("{}, by: {}", violation.what(), event.text());
      }
    }
    return goes_on ? "" : "the job waits for ever";
  }

  std::string way_to(uint32_t at) const {
    std::string text;
    for (; at != 0; at = found_[at].from) text = found_[at].by.text() + ", " + text;
    return "after: " + text;
  }

  JobModel model_;
  std::vector<Found> found_;
  std::unordered_set<uint32_t, Hash, Equal> seen_;
  uint64_t events_ = 0, ends_ = 0;
  std::set<std::array<uint8_t, ModelState::kChunks>> sum_orders_;
};

std::string explore(const ModelOptions& options) {
  Exploration exploration(options);
  std::string violation = exploration.run();
  std::printf("states %zu events %llu ends %llu\n", exploration.states(),
              static_cast<unsigned long long>(exploration.events()),
              static_cast<unsigned long long>(exploration.ends()));
  return violation;
}

struct Case {
  const char* name;  // every order of ...
  ModelOptions options;
  const char* finds = "";  // what must be found, in a control: what of elixird is left out
};

std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

class EveryOrder : public ::testing::TestWithParam<Case> {};

TEST_P(EveryOrder, KeepsTheInvariants) {
  const std::string violation = explore(GetParam().options);
  if (*GetParam().finds == '\0') {
    EXPECT_EQ(violation, "");
  } else {
    EXPECT_NE(violation.find(GetParam().finds), std::string::npos) << violation;
  }
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

// At any time a rank may die, or say goodbye.
ModelOptions dying(ModelOptions options) {
  options.dies = options.leaves = true;
  return options;
}

const Case kSteps[] = {
    {"OfADeferredStep", dying({.rounds = {1, 1}})},
    {"OfDeclaredSums", dying({.chunks = kMostChunks, .rules = {.accumulate = 2}})},
    {"OfSumsNobodyDeclared", dying({.chunks = kMostChunks, .waits = false})},
    // (With two chunks and two steps there are 4 million states: half a minute.)
    {"OfSumsNobodyDeclaredAndAwaited",
     dying({.chunks = kMostChunks, .steps = every_case() ? 1u : 2u})},
    {"OfImmediateUpdates",
     dying({.chunks = kMostChunks, .rules = {.accumulate = 2, .immediate = 1}})},
    {"OfNormsAndASkippedStep",
     dying({.chunks = kMostChunks, .rules = {.accumulate = 2, .norms = 1}, .skipped_step = 1})},
    {"WhereOneRankRunsLess", dying({.rounds = {2, 1}, .rules = {.accumulate = 2}})},
};

// Ranks that drop a pass, or several, before those that count. One may be far ahead.
const Case kDropped[] = {
    {"OfADroppedPassBeforeSums", dying({.chunks = 1, .dropped = {1, 1}})},
    {"OfDroppedSums", dying({.chunks = 1, .dropped = {2, 2}, .rules = {.accumulate = 2}})},
    {"WhereOneRankDropsLess", dying({.chunks = 1, .dropped = {2, 1}})},
    {"OfADroppedPassAndImmediateUpdates",
     dying({.chunks = 1, .dropped = {1, 1}, .rules = {.accumulate = 2, .immediate = 1}})},
    {"OfADroppedPassAndNorms",
     dying({.chunks = 1, .dropped = {1, 1}, .rules = {.norms = 1}, .skipped_step = 1})},
    {"OfADroppedPassOfAllChunks", {.chunks = kMostChunks, .steps = 1, .dropped = {1, 1}}},
};

// Ranks whose passes use different chunks would wait for one another's gradients.
const Case kDifferent[] = {
    {"WhereRanksUseDifferentChunks", dying({.passes = kApart})},
    {"OfCrossedChunksAndDeclaredSums", dying({.passes = kCrossed, .rules = {.accumulate = 2}})},
    {"OfCrossedChunksAndImmediateUpdates",
     dying({.passes = kCrossed, .rules = {.accumulate = 2, .immediate = 1}})},
    {"OfDifferentChunksAndADroppedPass",
     {.steps = 1, .dropped = {1, 1}, .passes = kApart, .rules = {.norms = 1}}},
};

constexpr const char* kWaits = "the job waits for ever";
const Case kControls[] = {
    {"WhereNobodyMakesUpForLostDoorbells", {.rules = {.accumulate = 2}, .ticks = false}, kWaits},
    {"WhereAPostDoesNotReadTheRecordsBeforeIt",
     {.rules = {.accumulate = 2}, .post_reads_records = false},
     "round 2 of chunk 1 is summed of ranks 0b1"},
    {"WhereRecordsOfALaterStepAreNotReadAgain",
     {.rules = {.accumulate = 2, .immediate = 1}, .reads_ahead_again = false},
     kWaits},
    {"WhereWhoSaidGoodbyeIsWaitedFor",
     {.rules = {.accumulate = 2}, .leaves = true, .sums_without_gone = false},
     kWaits},
    {"WhereWhatIsDroppedIsSummed",
     {.chunks = 1, .dropped = {1, 1}, .tells_discards = false},
     "was published after micro-step 1 had been summed"},
    {"WhereRanksThatWaitForOneAnotherAreLeftToIt",
     {.steps = 1, .passes = kApart, .sums_awaited = false},
     kWaits},
};

INSTANTIATE_TEST_SUITE_P(Steps, EveryOrder, ::testing::ValuesIn(kSteps), name_of);
INSTANTIATE_TEST_SUITE_P(Dropped, EveryOrder, ::testing::ValuesIn(kDropped), name_of);
INSTANTIATE_TEST_SUITE_P(Different, EveryOrder, ::testing::ValuesIn(kDifferent), name_of);
INSTANTIATE_TEST_SUITE_P(Controls, EveryOrder, ::testing::ValuesIn(kControls), name_of);

// However fast each rank is.
TEST(Exploration, SumsOfDifferentChunksAreMadeInOneOrder) {
  const ModelOptions kinds[] = {
      {.steps = 1, .passes = kApart},
      {.steps = 1, .passes = kCrossed, .rules = {.accumulate = 2}},
      {.steps = 1, .rounds = {3, 3}, .passes = {{{7, 2}, {6, 3}}}, .rules = {.accumulate = 3}},
      {.steps = 1, .rounds = {3, 2}, .passes = {{{5, 6}, {2, 3}}}},
  };
  for (const ModelOptions& options : kinds) {
    Exploration exploration(options);
    EXPECT_EQ(exploration.run(), "");
    EXPECT_EQ(exploration.sum_orders().size(), 1u);
  }
  // Of chunk 0 rank 0's first gradients, then its second ones with the other's zeros.
  Exploration apart({.steps = 1, .passes = kApart});
  EXPECT_EQ(apart.run(), "");
  EXPECT_THAT(apart.sum_orders(), ElementsAre(ElementsAre(0b0111, 0b1011)));
}

}  // namespace
}  // namespace elixir::testing
