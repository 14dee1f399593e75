// A plan changes the speed and never the numbers. A row of the table below is a program (its model,
// type, ranks, backward passes, clipping, loss scale) and how it is carried out (when chunks are
// updated, how ranks exchange, where states lie, how long chunks are). Whatever the row, weights,
// losses and norms are those of LibTorch's gradients with the scalar reference Adam.
//
//   ELIXIR_EVERY_CASE=1  rows in which every three values of three columns meet; else every two of
//                        two columns
//   ELIXIR_CASE_PART=I/N every combination of the first seven columns' values, the I-th of N parts
//   ELIXIR_CASE_ROW=I    the I-th of these rows alone, as a failure names it

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/client/lazy_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/every_case.h"
#include "tests/support/matchers.h"
#include "tests/support/median.h"

namespace elixir::test {
namespace {

class NoBitChanges : public WithElixird {};

// Seen by the lazy devices of a run, on all ranks.
struct Watched {
  std::mutex mutex;  // the ranks are threads
  std::string violation;
  size_t most_pending = 0;
};

// The device ends with the optimizer: what is asked of it is asked before.
class WatchedDevice final : public LazyDevice {
 public:
  WatchedDevice(const LazyFaults& faults, Watched* seen) : LazyDevice(faults), seen_(*seen) {}
  ~WatchedDevice() override {
    const std::lock_guard lock(seen_.mutex);
    seen_.violation += violation();
    seen_.most_pending = std::max(seen_.most_pending, most_pending());
    EXPECT_EQ(pins(), 0u);
  }

 private:
  Watched& seen_;
};

TrainingOutcome train_lazily(TrainingPlan plan, Watched* seen, const LazyFaults& faults = {}) {
  plan.make_device = [&](uint32_t) { return std::make_unique<WatchedDevice>(faults, seen); };
  return train_through_elixird(plan);
}

// ---- the table ----

struct Case : TrainingPlan {
  double chunk_length = 1;        // of the longest parameter
  bool clips_about_half = false;  // of the steps
  bool lazy = false;
  bool leaves_layers_out = false;  // of some steps, where they have no gradients
  bool uses_layers_twice = false;
};

struct Value {
  const char* name;
  void (*set)(Case&) = [](Case&) {};
};

struct Column {
  const char* name;
  std::vector<Value> values;
};

void update_early(Case& of, uint32_t slots) {
  of.update = UpdateMode::kEarly;
  of.spare_slots = slots;
}

// In this step, on the last rank alone.
void overflow(Case& of, int64_t at) {
  of.factor = [last = of.ranks - 1, at](uint32_t rank, int64_t step) {
    return rank == last && step == at ? std::numeric_limits<double>::infinity() : 1;
  };
}

void scale_dynamically(Case& of, int64_t overflow_at) {
  of.dynamic_loss_scale = DynamicLossScale{.init_scale = 256, .growth_interval = 3};
  overflow(of, overflow_at);
}

void checkpoint_with(Case& of, Activations::Mode mode, uint32_t products = 0) {
  of.checkpointed = true;
  of.activations = {.mode = mode, .products = products};
}

bool in_first_block(const std::string& name) {
  return name.find(".h.0.") != name.npos || name.find("layers.0.") != name.npos ||
         name.starts_with("layer0") || name.starts_with("layer2");
}

bool is_every_second(const std::string& name) {
  return name.ends_with("bias") || name.ends_with("norm.weight") ||
         (name.starts_with("layer") && (name[5] - '0') % 2 == 0);
}

const std::vector<Column> kColumns = {
    {"updates",
     {{"deferred", [](Case& of) { of.update = UpdateMode::kDeferred; }},
      {"early, 1 slot", [](Case& of) { update_early(of, 1); }},
      {"early, 3 slots", [](Case& of) { update_early(of, 3); }},
      {"early, all", [](Case& of) { update_early(of, UINT32_MAX); }},
      {"immediate", [](Case& of) { of.update = UpdateMode::kImmediate; }},
      {"sync", [](Case& of) { of.update = UpdateMode::kSync; }}}},
    {"type",
     {{"FP32"},
      {"BF16", [](Case& of) { of.dtype = ComputeType::kBf16; }},
      {"FP16", [](Case& of) { of.dtype = ComputeType::kFp16; }}}},
    {"ranks",
     {{"1"}, {"2", [](Case& of) { of.ranks = 2; }}, {"3", [](Case& of) { of.ranks = 3; }}}},
    {"exchange",
     {{"host", [](Case& of) { of.exchange = shm::Exchange::kHost; }},
      {"collective", [](Case& of) { of.exchange = shm::Exchange::kCollective; }},
      {"chosen"}}},
    {"states on the device",
     {{"none"},
      {"half", [](Case& of) { of.gpu_state_share = 0.5; }},
      {"all", [](Case& of) { of.gpu_state_share = 1; }}}},
    {"chunks",
     {{"of one parameter"},
      {"of some", [](Case& of) { of.chunk_length = 3; }},
      {"one", [](Case& of) { of.chunk_length = 20; }},
      {"two a parameter", [](Case& of) { of.chunk_length = 0.5; }},
      {"many a parameter", [](Case& of) { of.chunk_length = 0.15; }}}},
    {"swing",
     {{"none"},
      {"every chunk", [](Case& of) { of.swing_stride = 1; }},
      {"every second", [](Case& of) { of.swing_stride = 2; }},
      {"every third", [](Case& of) { of.swing_stride = 3; }}}},
    {"blocks",
     {{"few", [](Case& of) { of.rcache_blocks = 3; }},
      {"some", [](Case& of) { of.rcache_blocks = 8; }},
      {"all", [](Case& of) { of.rcache_blocks = 1000; }}}},
    {"workers", {{"all"}, {"one", [](Case& of) { of.workers = 1; }}}},
    {"device",
     {{"at once"},
      {"behind a link",
       [](Case& of) {
         of.link = HostLink{0.05, 0.03, 0.06, 20};
       }},
      {"lazy", [](Case& of) { of.lazy = true; }}}},
    {"model",
     {{"GPT-2"},
      {"Llama", [](Case& of) { of.family = planner::Family::kLlama; }},
      {"OPT", [](Case& of) { of.family = planner::Family::kOpt; }},
      {"chunks in turn",
       [](Case& of) {
         of.layers = [](int64_t) { return std::vector<int>{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}; };
       }},
      {"some layers in some steps",
       [](Case& of) {
         of.leaves_layers_out = true;
         of.layers = [](int64_t step) {
           return step % 3 == 1 ? std::vector<int>{0, 2, 3, 4, 9, 11} : in_order(11);
         };
       }},
      {"layers used twice",
       [](Case& of) {
         of.uses_layers_twice = true;
         of.layers = [](int64_t) {
           return std::vector<int>{0, 1, 2, 3, 4, 5, 1, 6, 7, 8, 9, 5, 10, 11, 0};
         };
       }}}},
    {"activations",
     {{"no regions"},
      {"recomputed", [](Case& of) { checkpoint_with(of, Activations::Mode::kRecompute); }},
      {"products of one region",
       [](Case& of) { checkpoint_with(of, Activations::Mode::kProducts, 1); }},
      {"products", [](Case& of) { checkpoint_with(of, Activations::Mode::kProducts, 100); }},
      {"kept", [](Case& of) { checkpoint_with(of, Activations::Mode::kKeep); }},
      {"sent", [](Case& of) { checkpoint_with(of, Activations::Mode::kHost); }}}},
    {"frozen",
     {{"nothing"},
      {"a block", [](Case& of) { of.freezes = in_first_block; }},
      {"every second", [](Case& of) { of.freezes = is_every_second; }}}},
    {"groups", {{"one"}, {"two", [](Case& of) { of.some_apart = true; }}}},
    {"passes",
     {{"one"},
      {"three", [](Case& of) { of.accumulate = 3; }},
      {"three, undeclared",
       [](Case& of) {
         of.accumulate = 3;
         of.declares = false;
       }}}},
    {"clips",
     {{"not asked"},
      {"never", [](Case& of) { of.clip_norm = 1e6; }},
      {"about half", [](Case& of) { of.clips_about_half = true; }},
      {"always", [](Case& of) { of.clip_norm = 1e-3; }}}},
    {"loss scale",
     {{"none"},
      {"none, a step overflows", [](Case& of) { overflow(of, 2); }},
      {"constant", [](Case& of) { of.loss_scale = 256; }},
      {"dynamic, the first step overflows", [](Case& of) { scale_dynamically(of, 0); }},
      {"dynamic, grows and overflows", [](Case& of) { scale_dynamically(of, 5); }}}},
    {"dropped", {{"nothing"}, {"a pass", [](Case& of) { of.empty_backward = true; }}}},
};
constexpr size_t kMainColumns = 7;

using Row = std::vector<size_t>;  // an index into each column's values

std::string name_of(size_t column, size_t value) {
  return fmt::format("{}: {}", kColumns[column].name, kColumns[column].values[value].name);
}

std::string name_of(const Row& row) {
  std::string text;
  for (size_t i = 0; i < row.size(); ++i) text += name_of(i, row[i]) + "; ";
  return text;
}

Case case_of(const Row& row) {
  Case of;
  of.batch = 2;
  of.steps = 8;
  for (size_t i = 0; i < row.size(); ++i) kColumns[i].values[row[i]].set(of);
  const auto longest = static_cast<double>(largest_parameter_numel(of));
  of.chunk_numel = static_cast<uint64_t>(of.chunk_length * longest);
  return of;
}

// Elixir refuses these (StepControl, RunPlan and GradOffload say why), or they would show nothing.
bool is_refused(const Case& of) {
  const bool clips = of.clip_norm || of.clips_about_half;
  // Immediate updates cannot be taken back.
  const bool needs_verdict = clips || of.dynamic_loss_scale || of.swing_stride;
  const bool may_change = !of.declares || of.empty_backward;
  const bool host = of.ranks == 1 || of.exchange == shm::Exchange::kHost;
  const bool is_partial = of.leaves_layers_out && !host;
  const bool immediate = of.update == UpdateMode::kImmediate;
  if (immediate && (needs_verdict || may_change || is_partial)) return true;
  // elixird has all states there.
  if (host && of.ranks > 1 && of.gpu_state_share > 0) return true;
  // LazyDevice takes blocks that were fetched ahead for nothing for read ones, and wants a norm to
  // wait for operators, though kReduce has made the sum itself.
  const bool norms = clips || of.dynamic_loss_scale;
  const bool norms_of_sums = norms && of.accumulate > 1 && of.gpu_state_share > 0;
  if (of.lazy && (of.leaves_layers_out || (norms_of_sums && !host))) return true;
  // Each region gives its parameters a gradient. Elixir sums these as those of several passes: in
  // FP32, over the ranks first. torch sums those of a pass first, in its type.
  if (of.checkpointed && of.uses_layers_twice) return true;
  const bool scales = of.loss_scale != 1 || of.dynamic_loss_scale;
  if (of.dtype == ComputeType::kFp16 && !scales) return true;
  // Nothing skips the step.
  return of.factor && !clips && !of.dynamic_loss_scale;
}

bool is_refused(const Row& row) { return is_refused(case_of(row)); }

// ---- which rows ----

// A column and its value, a later column and its value, and perhaps a third (else kNoThird).
using Meeting = std::array<uint8_t, 6>;
constexpr uint8_t kNoThird = UINT8_MAX;
using Choices = std::vector<std::vector<size_t>>;  // of each column, some of its values

// Every meeting of two or three (`strength`) of these values.
template <typename Visit>
void visit_meetings(const Choices& choices, size_t strength, const Visit& visit,
                    Meeting begun = {0, 0, 0, 0, kNoThird, kNoThird}, size_t depth = 0,
                    size_t first = 0) {
  if (depth == strength) return visit(begun);
  for (size_t column = first; column < choices.size(); ++column) {
    for (const size_t value : choices[column]) {
      begun[2 * depth] = static_cast<uint8_t>(column);
      begun[2 * depth + 1] = static_cast<uint8_t>(value);
      visit_meetings(choices, strength, visit, begun, depth + 1, column + 1);
    }
  }
}

template <typename Visit>
void visit_meetings(const Row& row, size_t strength, const Visit& visit) {
  Choices choices;
  for (const size_t value : row) choices.push_back({value});
  visit_meetings(choices, strength, visit);
}

std::set<Meeting> all_meetings(size_t strength) {
  Choices choices;
  for (const Column& column : kColumns) {
    choices.emplace_back();
    for (size_t value = 0; value < column.values.size(); ++value) choices.back().push_back(value);
  }
  std::set<Meeting> all;
  visit_meetings(choices, strength, [&](const Meeting& each) { all.insert(each); });
  return all;
}

std::set<Meeting> meetings_of(const std::vector<Row>& rows, size_t strength) {
  std::set<Meeting> found;
  for (const Row& row : rows) {
    visit_meetings(row, strength, [&](const Meeting& each) { found.insert(each); });
  }
  return found;
}

// The two values of a meeting of three without its first, second or third one.
std::array<Meeting, 3> pairs_of(const Meeting& three) {
  const auto [a, i, b, j, c, k] = three;
  return {{{a, i, b, j, kNoThird, kNoThird},
           {a, i, c, k, kNoThird, kNoThird},
           {b, j, c, k, kNoThird, kNoThird}}};
}

Row random_row(std::mt19937& random) {
  Row row;
  for (const Column& column : kColumns) row.push_back(random() % column.values.size());
  return row;
}

// The best of some legal rows with this meeting, found by chance: it has the most that are missing.
// Empty: there is none.
Row best_row(const Meeting& meeting, size_t strength, const std::set<Meeting>& missing,
             std::mt19937& random) {
  Row best;
  size_t most = 0;
  for (int tries = 0, legal = 0; tries < 20'000 && legal < 100; ++tries) {
    Row row = random_row(random);
    for (size_t i = 0; i < strength; ++i) row[meeting[2 * i]] = meeting[2 * i + 1];
    if (is_refused(row)) continue;
    ++legal;
    size_t news = 0;
    visit_meetings(row, strength, [&](const Meeting& each) { news += missing.count(each); });
    if (news > most) best = row;
    most = std::max(most, news);
  }
  return best;
}

// In which every two or three (`strength`) values meet that go together.
std::vector<Row> covering_rows(size_t strength) {
  std::vector<Row> rows;
  std::set<Meeting> missing = all_meetings(strength);
  if (strength == 3) {
    rows = covering_rows(2);
    const std::set<Meeting> pairs = meetings_of(rows, 2);
    const auto never_meet = [&](const Meeting& three) {
      return !std::ranges::all_of(pairs_of(three),
                                  [&](const Meeting& two) { return pairs.contains(two); });
    };
    std::erase_if(missing, never_meet);
    for (const Meeting& each : meetings_of(rows, 3)) missing.erase(each);
  }
  std::mt19937 random(1);
  while (!missing.empty()) {
    const Meeting first = *missing.begin();
    const Row row = best_row(first, strength, missing, random);
    missing.erase(first);
    if (row.empty()) continue;
    visit_meetings(row, strength, [&](const Meeting& each) { missing.erase(each); });
    rows.push_back(row);
  }
  return rows;
}

struct CasePart {
  size_t index = 0, of = 1;
};

std::optional<CasePart> case_part() {
  const char* const asked = std::getenv("ELIXIR_CASE_PART");
  if (asked == nullptr) return {};
  CasePart part;
  EXPECT_EQ(std::sscanf(asked, "%zu/%zu", &part.index, &part.of), 2) << asked;
  part.of = std::max<size_t>(part.of, 1);
  part.index = std::clamp<size_t>(part.index, 1, part.of) - 1;
  return part;
}

// Every combination of the main columns; the others' values come by chance.
std::vector<Row> every_row(const CasePart& part) {
  std::vector<Row> rows;
  std::mt19937 random(1);
  for (size_t number = 0;; ++number) {
    Row row;
    for (size_t rest = number; const Column& column : kColumns) {
      const size_t n = column.values.size();
      row.push_back(rest % n);
      rest /= n;
      if (row.size() == kMainColumns && rest > 0) return rows;
    }
    for (int tries = 0; tries < 1000 && is_refused(row); ++tries) {
      for (size_t i = kMainColumns; i < row.size(); ++i) {
        row[i] = random() % kColumns[i].values.size();
      }
    }
    if (number % part.of == part.index && !is_refused(row)) rows.push_back(row);
  }
}

// ---- the test ----

// Counted over all rows.
struct Seen {
  uint64_t early_chunks = 0, early_hits = 0, swing_chunks = 0;
  size_t most_pending = 0;
};

double norm_about_half(TrainingPlan plan) {
  plan.exchange = plan.exchange.value_or(shm::Exchange::kHost);
  plan.clip_norm = 1e6;
  return median(train_with_scalar_reference(plan).grad_norms);
}

// The row was carried out as it says, where other columns leave it the choice.
void expect_carried_out(const Case& of, const PlanSummary& plan) {
  const bool whole = of.chunk_length >= 1, in_host = !of.gpu_state_share;
  EXPECT_EQ(plan.n_frozen_chunks > 0, of.freezes != nullptr);
  EXPECT_TRUE(of.swing_stride || plan.n_swing_chunks == 0);
  EXPECT_TRUE(in_host ? plan.n_gpu_chunks == 0 : plan.n_gpu_chunks > 0 || !whole);
  EXPECT_TRUE(whole || !in_host || plan.long_blocks > 0);
  if (in_host && !of.swing_stride) {
    EXPECT_EQ(plan.update, of.update);
    EXPECT_EQ(plan.spare_slots, std::min(plan.n_chunks, of.spare_slots.value_or(0)));
  }
  const shm::Exchange chosen =
      plan.n_gpu_chunks > 0 ? shm::Exchange::kCollective : shm::Exchange::kHost;
  EXPECT_EQ(plan.exchange, of.ranks == 1 ? shm::Exchange::kHost : of.exchange.value_or(chosen));
}

TrainingOutcome expect_reference(Case of, Seen* seen = nullptr) {
  if (of.clips_about_half) of.clip_norm = norm_about_half(of);
  uint64_t early_chunks = 0, early_hits = 0;
  of.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t) {
    if (rank != 0) return;
    early_chunks += optimizer.stats().early_chunks;  // of the last step that is over
    early_hits += optimizer.stats().early_hits;
  };
  Watched watched;
  const TrainingOutcome ours = of.lazy ? train_lazily(of, &watched) : train_through_elixird(of);
  EXPECT_EQ(watched.violation, "");
  expect_carried_out(of, ours.plan);
  if (of.checkpointed) {
    const bool kept = of.activations.mode == Activations::Mode::kKeep;
    EXPECT_EQ(ours.stats.recomputed_regions == 0, kept) << ours.stats.recomputed_regions;
    const bool sent = of.activations.mode == Activations::Mode::kHost;
    EXPECT_EQ(ours.stats.activation_d2h_bytes > 0, sent) << ours.stats.activation_d2h_bytes;
    EXPECT_EQ(ours.stats.activation_h2d_bytes > 0, sent) << ours.stats.activation_h2d_bytes;
  }

  of.exchange = ours.plan.exchange;
  const TrainingOutcome reference = train_with_scalar_reference(of);
  expect_equal_bits(ours, reference);
  EXPECT_EQ(ours.loss_scales, reference.loss_scales);
  EXPECT_EQ(ours.skipped, reference.skipped);
  EXPECT_EQ(reference.skipped, of.factor ? 1u : 0u);
  if (of.clip_norm || of.dynamic_loss_scale) {
    EXPECT_EQ(ours.grad_norms, reference.grad_norms);
  }
  const auto clipped = static_cast<uint64_t>(
      std::count_if(reference.grad_norms.begin(), reference.grad_norms.end(),
                    [&](double norm) { return norm > of.clip_norm.value_or(1e300); }));
  if (of.clips_about_half) {
    EXPECT_GT(clipped, ours.losses.size() / 5);
    EXPECT_LT(clipped, ours.losses.size() * 17 / 20);
  }
  if (clipped == 0 && reference.skipped == 0 && of.declares && !of.empty_backward) {
    EXPECT_EQ(early_hits, early_chunks);
  }
  if (seen == nullptr) return ours;
  seen->early_chunks += early_chunks;
  seen->early_hits += early_hits;
  seen->swing_chunks += ours.plan.n_swing_chunks;
  seen->most_pending = std::max(seen->most_pending, watched.most_pending);
  return ours;
}

TEST_F(NoBitChanges, WhateverThePlanAndTheProgram) {
  const std::optional<CasePart> part = case_part();
  const std::vector<Row> rows = part ? every_row(*part) : covering_rows(every_case() ? 3 : 2);
  Seen seen;
  const char* const only = std::getenv("ELIXIR_CASE_ROW");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (only != nullptr && std::to_string(i) != only) continue;
    SCOPED_TRACE(fmt::format("row {} of {}: {}", i, rows.size(), name_of(rows[i])));
    expect_reference(case_of(rows[i]), &seen);
    ASSERT_FALSE(HasFailure());
  }
  if (only != nullptr) return;
  EXPECT_GT(seen.early_chunks, 0u);
  EXPECT_GT(seen.early_hits, 0u);
  EXPECT_LT(seen.early_hits, seen.early_chunks) << "clipping has dropped none";
  EXPECT_GT(seen.swing_chunks, 10u);
  EXPECT_GT(seen.most_pending, 2u) << "no device was lazy";
}

// Among themselves: torch sums in another order (is_refused()).
TEST_F(NoBitChanges, OfRegionsThatShareParametersWhateverTheyKeep) {
  using enum Activations::Mode;
  for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
    for (const uint32_t ranks : {1, 2}) {
      for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
        for (const uint32_t passes : {1, 2}) {
          SCOPED_TRACE(fmt::format("{} bytes, {} ranks, exchange {}, {} passes",
                                   element_bytes(dtype), ranks, static_cast<int>(exchange),
                                   passes));
          Case of;
          of.batch = 2;
          of.steps = 6;
          of.dtype = dtype;
          of.ranks = ranks;
          of.exchange = exchange;
          of.accumulate = passes;
          of.checkpointed = true;
          of.layers = [](int64_t) { return std::vector<int>{0, 1, 2, 1, 3, 0, 4}; };
          of.activations = {.mode = kRecompute};
          const TrainingOutcome recomputed = train_through_elixird(of);
          EXPECT_GT(recomputed.stats.recomputed_regions, 0U);
          for (const Activations& kept :
               {Activations{kProducts, 3}, Activations{kKeep}, Activations{kHost}}) {
            of.activations = kept;
            expect_equal_bits(train_through_elixird(of), recomputed);
          }
        }
      }
    }
  }
}

// In which a rare difference would show. They train: BF16 to about the loss of FP32.
TEST_F(NoBitChanges, InLongRuns) {
  std::vector<double> last_losses;
  for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
    for (const UpdateMode update : {UpdateMode::kDeferred, UpdateMode::kEarly}) {
      Case of;
      of.clips_about_half = update == UpdateMode::kEarly;
      of.ranks = 2;
      of.batch = 2;
      of.steps = 100;
      of.dtype = dtype;
      of.update = update;
      if (of.clips_about_half) update_early(of, UINT32_MAX);
      of.chunk_numel = largest_parameter_numel();
      const TrainingOutcome ours = expect_reference(of);
      EXPECT_LT(ours.losses.back(), ours.losses.front() - 0.5);
      last_losses.push_back(ours.losses.back());
    }
  }
  EXPECT_NEAR(last_losses[2], last_losses[0], 0.1);
  EXPECT_NEAR(last_losses[3], last_losses[1], 0.1);
  EXPECT_NE(last_losses[2], last_losses[0]);
}

TEST(Rows, HaveEveryTwoValuesThatGoTogether) {
  const std::vector<Row> rows = covering_rows(2);
  const std::set<Meeting> met = meetings_of(rows, 2);
  for (const Row& row : rows) EXPECT_FALSE(is_refused(row)) << name_of(row);
  std::vector<std::string> never_together;
  for (const Meeting& two : all_meetings(2)) {
    const auto& [a, i, b, j, _, none] = two;
    if (!met.contains(two)) never_together.push_back(name_of(a, i) + "; " + name_of(b, j));
  }
  EXPECT_THAT(
      never_together,
      UnorderedElementsAre(
          "updates: immediate; swing: every chunk", "updates: immediate; swing: every second",
          "updates: immediate; swing: every third", "updates: immediate; passes: three, undeclared",
          "updates: immediate; clips: never", "updates: immediate; clips: about half",
          "updates: immediate; clips: always",
          "updates: immediate; loss scale: none, a step overflows",
          "updates: immediate; loss scale: dynamic, the first step overflows",
          "updates: immediate; loss scale: dynamic, grows and overflows",
          "updates: immediate; dropped: a pass", "type: FP16; loss scale: none",
          "type: FP16; loss scale: none, a step overflows",
          "device: lazy; model: some layers in some steps",
          "model: layers used twice; activations: recomputed",
          "model: layers used twice; activations: products of one region",
          "model: layers used twice; activations: products",
          "model: layers used twice; activations: kept",
          "model: layers used twice; activations: sent",
          "clips: not asked; loss scale: none, a step overflows"));
}

TEST(Rows, HaveEveryThreeValuesThatGoTogether) {
  if (!every_case()) GTEST_SKIP() << "nightly: a minute to find the rows";
  const std::vector<Row> rows = covering_rows(3);
  const std::set<Meeting> met = meetings_of(rows, 3);
  std::printf("%zu rows, %zu meetings\n", rows.size(), met.size());
  std::mt19937 random(2);
  for (int legal = 0; legal < 2000;) {
    const Row row = random_row(random);
    if (is_refused(row)) continue;
    ++legal;
    visit_meetings(row, 3, [&](const Meeting& each) {
      EXPECT_TRUE(met.contains(each))
          << name_of(each[0], each[1]) << "; " << name_of(each[2], each[3]) << "; "
          << name_of(each[4], each[5]);
    });
  }
}

// ---- controls ----

// The bit is one of a rank's loss.
TEST_F(NoBitChanges, AChangedBitIsSeen) {
  TrainingPlan plan;
  plan.ranks = 2;
  plan.steps = 3;
  const TrainingOutcome one = train_through_elixird(plan);
  plan.factor = [](uint32_t rank, int64_t step) {
    return rank == 1 && step == 1 ? 1 + std::numeric_limits<float>::epsilon() : 1;
  };
  EXPECT_NE(train_through_elixird(plan).weights_xxh64, one.weights_xxh64);
}

// Each value of a column that belongs to the program is seen, too.
TEST(Reference, HasOtherBitsForAnotherProgram) {
  const Row first(kColumns.size());
  std::set<uint64_t> seen = {train_with_scalar_reference(case_of(first)).weights_xxh64};
  for (const std::string name : {"type", "ranks", "model", "frozen", "groups", "passes"}) {
    const auto column = std::find_if(kColumns.begin(), kColumns.end(),
                                     [&](const Column& each) { return each.name == name; });
    for (size_t value = 1; value < column->values.size(); ++value) {
      Row row = first;
      row[static_cast<size_t>(column - kColumns.begin())] = value;
      Case of = case_of(row);
      if (of.dtype == ComputeType::kFp16) of.loss_scale = 256;
      const bool declares = std::exchange(of.declares, true);
      const uint64_t xxh64 = train_with_scalar_reference(of).weights_xxh64;
      EXPECT_EQ(seen.insert(xxh64).second, declares) << name << " " << value;
    }
  }
  Case plan = case_of(first);
  plan.clip_norm = norm_about_half(plan);
  EXPECT_TRUE(seen.insert(train_with_scalar_reference(plan).weights_xxh64).second) << "clipping";
  overflow(plan, 2);
  EXPECT_TRUE(seen.insert(train_with_scalar_reference(plan).weights_xxh64).second) << "skipping";
}

// (Each wait's control is in the tests of the exchanges.)
TEST_F(NoBitChanges, AMissingWaitIsSeen) {
  TrainingPlan plan;
  plan.steps = 8;
  plan.chunk_numel = largest_parameter_numel();
  plan.rcache_blocks = 3;
  const uint64_t right = train_through_elixird(plan).weights_xxh64;
  Watched wrong, race, early;
  EXPECT_NE(train_lazily(plan, &wrong, {.compute_ignores_uploads = true}).weights_xxh64, right);
  // Whether elixird reads a gradient before it came is a race, which it wins now and then.
  bool seen = false;
  for (int attempt = 0; attempt < 50 && !seen; ++attempt) {
    seen = train_lazily(plan, &race, {.host_does_not_wait = true}).weights_xxh64 != right;
  }
  EXPECT_TRUE(seen);
  train_lazily(plan, &early, {.uploads_ignore_compute = true});
  EXPECT_THAT(early.violation, HasSubstr("operators may be reading"));
}

}  // namespace
}  // namespace elixir::test
