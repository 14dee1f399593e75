#include "tests/daemon/modes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/compute_type_names.h"

namespace elixir::testing {
namespace {

constexpr uint32_t kSteps = shm::kStepRing + 2;
constexpr uint64_t kUnit = 128 * 37;  // no number of ranks here divides it into whole shards
constexpr uint64_t kLongest = 3 * kUnit;
constexpr double kTrainersSquare = 100;
constexpr double kClip = 0.01, kNeverClips = 1e6;
constexpr uint32_t kAll = UINT32_MAX;

constexpr Verdicts kVerdicts[] = {
    {},
    {.name = "clipped", .norms = true, .clip_norm = kClip},
    {.name = "clipped at the post", .clip_norm = kClip},
    {.name = "one skipped", .norms = true, .clip_norm = kNeverClips, .poison_step = 5},
    {.name = "one skipped at the post", .checks_finite = true, .poison_step = 1}};

constexpr Mode kModes[] = {
    {.name = "deferred"},
    {.name = "two rounds", .accumulate = 2},
    {.name = "four rounds", .accumulate = 4},
    {.name = "rounds that nobody declared", .undeclared = true},
    {.name = "dropped", .drops = true},
    {.name = "dropped sums", .accumulate = 2, .drops = true},
    {.name = "immediate", .immediate = true},
    {.name = "immediate, three rounds", .accumulate = 3, .immediate = true},
    {.name = "early in one slot", .spare_slots = 1},
    {.name = "early in two slots, three rounds", .accumulate = 3, .spare_slots = 2},
    {.name = "all early", .spare_slots = kAll},
    {.name = "early, dropped", .drops = true, .spare_slots = 2},
    {.name = "one swings", .swing_chunks = 1, .swing_lanes = 2},
    {.name = "three swing", .swing_chunks = 3, .swing_lanes = 2},
    {.name = "four swing in three lanes", .swing_chunks = 4, .swing_lanes = 3},
    {.name = "three swing, undeclared", .undeclared = true, .swing_chunks = 3, .swing_lanes = 2},
    {.name = "all swing, two rounds", .accumulate = 2, .swing_chunks = kAll, .swing_lanes = 1},
    {.name = "all swing", .swing_chunks = kAll, .swing_lanes = 2},
    {.name = "early and swing", .spare_slots = 3, .swing_chunks = 3, .swing_lanes = 2},
    {.name = "collective", .collective = true},
    {.name = "collective, three rounds", .accumulate = 3, .collective = true},
    {.name = "collective, immediate", .immediate = true, .collective = true},
    {.name = "collective, early", .spare_slots = 3, .collective = true},
    {.name = "collective, swing", .swing_chunks = 4, .swing_lanes = 2, .collective = true}};

bool is_long(Layout layout) {
  return layout == Layout::kThreeChunks || layout == Layout::kElevenChunks;
}

FakeModel long_model(const Training& of, uint64_t chunk_numel) {
  FakeModel model = make_long_model(of.type, of.ranks, chunk_numel);
  model.groups = {1, 0, 1, 0, 1, 0};
  model.unused = [](uint32_t place, uint32_t step) {
    return (place == 0 && step % 3 == 2) || (place == 2 && step % 4 == 1);
  };
  model.poison_step = of.mode.verdicts.poison_step;
  return model;
}

FakeModel model_of(const Training& of) {
  if (of.layout == Layout::kThreeChunks) return long_model(of, kUnit);
  if (of.layout == Layout::kElevenChunks) return long_model(of, 128 * 11);
  if (of.layout == Layout::kLarge) return make_model(of.type, of.ranks, 4, 4 * kUnit);
  if (of.layout == Layout::kEmptyShards) {
    return make_model(of.type, of.ranks, 2, shm::kAlignNumel * 2);
  }
  FakeModel model = make_model(of.type, of.ranks, 5, 128 * 11);
  if (of.layout != Layout::kGroups) return model;
  for (uint32_t i = 0; i < model.places.size(); ++i) model.groups.push_back(i % 3);
  // All of chunk 0 in step 2, one place of each in others, and one from the beginning on.
  model.unused = [](uint32_t place, uint32_t step) {
    return (step == 2 && place < 2) || (step + place) % 3 == 0 || (step < 4 && place == 3);
  };
  return model;
}

uint32_t rounds_of(const Mode& mode, uint32_t step) {
  if (mode.undeclared) return step % 3 == 2 ? 3 : 1;
  if (mode.accumulate == 1 || step == 4) return 1;
  return step == 7 && !mode.immediate ? mode.accumulate + 1 : mode.accumulate;
}

class Run {
 public:
  Run(FakeJob& job, const Training& training)
      : job_(job), training_(training), mode_(training.mode), reference_(job.model()) {
    if (!is_long(training.layout)) return;
    FakeModel whole = long_model(training, kLongest);
    whole.shape.exchange = job.model().shape.exchange;
    whole_.emplace(whole);
  }

  void step(uint32_t number) {
    const Reference before = reference_;
    shm::StepRecord record = training_.record(number);
    const uint32_t rounds = rounds_of(mode_, number);
    NormSum more = {};
    for (uint32_t rank = 0; rank < job_.local_ranks(); ++rank) add(more, own_squares(rank));
    verdict_ = reference_.step(record, rounds, more);
    if (whole_) whole_->step(record, rounds, more);
    if (mode_.immediate || mode_.spare_slots > 0) job_.open(record);
    ASSERT_NO_FATAL_FAILURE(publish(number, rounds));
    if (!mode_.immediate) {
      expect_unchanged(before);
    } else if (rounds == mode_.accumulate) {
      ASSERT_NO_FATAL_FAILURE(expect_updated_before_the_post(number));
    }
    post(record);
    const Status swung = job_.swing(number);
    ASSERT_TRUE(swung.ok()) << swung.message();
    const Status finished = job_.wait_finished(number);
    ASSERT_TRUE(finished.ok()) << finished.message();
    expect_results(record);
  }

 private:
  // Of what elixird does not see.
  NormSum own_squares(uint32_t rank) const {
    NormSum squares = {};
    if (mode_.verdicts.clip_norm > 0 && !mode_.collective)
      add_leaf(squares, kTrainersSquare + rank);
    return squares;
  }

  void publish(uint32_t step, uint32_t rounds) {
    if (mode_.drops) {
      ASSERT_NO_FATAL_FAILURE(publish_and_drop(step));
    }
    for (uint32_t round = 1; round <= rounds; ++round) {
      if (round > 1) {
        ASSERT_NO_FATAL_FAILURE(wait_for_sums());
      }
      job_.publish(step, round);
    }
  }
  void publish_and_drop(uint32_t step) {
    for (uint32_t rank = 0; rank < job_.local_ranks(); ++rank) {
      for (uint32_t chunk = 0; chunk < job_.model().shape.n_chunks; ++chunk) {
        const auto other = fake_gradient(job_.model(), rank, chunk, step + 50);
        job_.rank(rank).write_grads(chunk, other.data(), step);
        job_.rank(rank).ring_grads(chunk);
      }
    }
    if (mode_.accumulate > 1) {
      ASSERT_TRUE(job_.wait_taken().ok());
    }
    for (auto& rank : job_.ranks()) rank->discard();
  }
  void wait_for_sums() {
    for (auto& rank : job_.ranks()) {
      for (uint32_t chunk = 0; mode_.undeclared && chunk < job_.model().shape.n_chunks; ++chunk) {
        rank->request_sum(chunk);
      }
    }
    const Status taken = job_.wait_taken();
    ASSERT_TRUE(taken.ok()) << taken.message();
  }
  void post(const shm::StepRecord& record) {
    for (uint32_t rank = 0; rank < job_.local_ranks(); ++rank) {
      shm::StepRecord mine = record;
      mine.metric += rank;  // each has seen other data
      mine.norm = mode_.collective ? reference_.squares() : own_squares(rank);
      job_.rank(rank).post(mine);
    }
  }

  void expect_unchanged(const Reference& before) {
    while (job_.rank(0).go_on()) {
    }
    const Status same = job_.compare(before);
    EXPECT_TRUE(same.ok()) << "before its post: " << same.message();
  }
  void expect_updated_before_the_post(uint32_t step) {
    for (auto& rank : job_.ranks()) {
      for (uint32_t chunk = 0; chunk < job_.model().shape.n_chunks; ++chunk) {
        ASSERT_TRUE(rank->wait_param(chunk, step).ok());
        const shm::ChunkRecord& times = rank->chunk_record(chunk);
        EXPECT_GT(times.update_begin_ns.load(), 0u);
        EXPECT_GE(times.update_end_ns.load(), times.update_begin_ns.load());
      }
      EXPECT_EQ(rank->header().committed_step.load(), step - 1);
    }
  }

  void expect_results(const shm::StepRecord& record) {
    const FakeModel& model = job_.model();
    expect_verdict(job_, record.step, verdict_, reference_.applied());
    for (auto& rank : job_.ranks()) {
      EXPECT_DOUBLE_EQ(rank->step_result(record.step).metric_mean,
                       record.metric + (job_.local_ranks() - 1) / 2.0);
      for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
        EXPECT_EQ(rank->param_step(chunk), record.step);
      }
      expect_update(rank->update_result(record.step), verdict_.skipped ? 0 : numel(record.step));
    }
    const Status same = job_.compare(reference_);
    ASSERT_TRUE(same.ok()) << same.message();
    for (uint32_t i = 0; whole_ && i < model.places.size(); ++i) {
      ASSERT_EQ(reference_.masters_of(i), whole_->masters_of(i)) << model.places[i].name;
    }
  }
  void expect_update(const shm::UpdateResult& update, uint64_t numel) {
    EXPECT_EQ(update.updated_numel, numel);
    EXPECT_TRUE(numel == 0 || update.update_ns > 0);
    EXPECT_LE(update.early_hits, update.early_chunks);
    EXPECT_LE(update.early_chunks, job_.model().shape.n_spare_slots);
    EXPECT_EQ(update.swing_chunks, verdict_.skipped ? 0 : job_.model().shape.n_swing_chunks);
  }
  // What elixird updates, here.
  uint64_t numel(uint32_t step) const {
    const FakeModel& model = job_.model();
    uint64_t numel = 0;
    for (uint32_t i = 0; i < model.places.size(); ++i) {
      if (model.grad_group(i, step) == shm::kNoGradient) continue;
      const shm::ChunkRun run = shm::chunks_of(model.places[i], model.shape);
      for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
        const shm::ParameterPart part = shm::part_in(model.places[i], model.shape, chunk);
        const uint64_t begin = std::max(part.offset, job_.first_element());
        const uint64_t end = std::min(part.offset + part.numel, job_.end_element());
        if (!model.shape.swings(chunk) && begin < end) numel += end - begin;
      }
    }
    return numel;
  }

  FakeJob& job_;
  const Training& training_;
  const Mode& mode_;
  Reference reference_;
  std::optional<Reference> whole_;  // chunks that hold the longest parameter whole
  optim::Verdict verdict_;
};

}  // namespace

std::vector<Training> trainings(uint32_t share) {
  std::vector<Training> all, chosen;
  for (Mode mode : kModes) {
    for (const Verdicts& verdicts : kVerdicts) {
      // Those that need the whole gradient come too late.
      if (mode.immediate && (verdicts.clip_norm > 0 || verdicts.checks_finite)) continue;
      mode.verdicts = verdicts;
      for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
        for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
          for (const Layout layout : {Layout::kPlain, Layout::kGroups, Layout::kEmptyShards,
                                      Layout::kThreeChunks, Layout::kElevenChunks}) {
            all.push_back({mode, type, ranks, layout});
          }
        }
      }
    }
  }
  for (size_t i = 0; i < all.size(); i += share) chosen.push_back(all[i]);
  return chosen;
}

std::string Training::name() const {
  constexpr const char* kLayouts[] = {"plain",        "groups",       "large",
                                      "empty shards", "three chunks", "eleven chunks"};
  return fmt::format("{}, {}: {}, {} ranks, {}", mode.name, mode.verdicts.name,
                     compute_type_name(type), ranks, kLayouts[static_cast<size_t>(layout)]);
}

FakeModel Training::model() const {
  FakeModel model = model_of(*this);
  model.poison_step = mode.verdicts.poison_step;
  if (mode.collective) model.shape.exchange = shm::Exchange::kCollective;
  model.shape.n_swing_chunks = std::min(mode.swing_chunks, model.shape.n_chunks);
  model.shape.n_swing_lanes = mode.swing_lanes;
  model.shape.n_spare_slots = std::min(mode.spare_slots, model.shape.first_swing());
  return model;
}

FakeJob::Options Training::options() const {
  const uint32_t elsewhere = mode.collective && ranks > 1 ? 1 : 0;
  return {.model = model(),
          .accumulate = mode.accumulate,
          .immediate = mode.immediate,
          .norms = mode.verdicts.norms,
          .early = mode.spare_slots > 0,
          .first_rank = elsewhere,
          .local_ranks = ranks - elsewhere};
}

shm::StepRecord Training::record(uint32_t step) const {
  shm::StepRecord record = make_record(step, mode.collective ? 1 : ranks);
  record.n_groups = 3;
  record.groups[1] = {3e-3, 0.2, {0.8, 0.9, 1e-8}};
  record.groups[2] = {0, 0.5, {0.5, 0.999, 1e-6}};
  record.check_finite = mode.verdicts.checks_finite;
  const double clip_norm = mode.verdicts.clip_norm;
  if (clip_norm > 0) record.clip_norm = step % 2 == 0 ? clip_norm : kNeverClips;
  if (step == 9) record.clip_norm = 0;  // one without a norm between
  return record;
}

void expect_reference_bits(FakeJob& job, const Training& training) {
  const Status loaded = job.compare(Reference(job.model()));
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  Run run(job, training);
  for (uint32_t step = 1; step <= kSteps && !::testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(fmt::format("{}, step {}", training.name(), step));
    run.step(step);
  }
}

void expect_verdict(FakeJob& job, uint32_t step, const optim::Verdict& verdict, uint64_t applied) {
  for (auto& rank : job.ranks()) {
    const shm::StepResult result = rank->step_result(step);
    EXPECT_EQ(result.step, step);
    EXPECT_EQ(result.skipped, verdict.skipped ? 1u : 0u);
    EXPECT_EQ(result.grad_scale, verdict.grad_scale);
    EXPECT_EQ(result.applied, applied);
    if (std::isnan(verdict.grad_norm)) {
      EXPECT_TRUE(std::isnan(result.grad_norm)) << result.grad_norm;
    } else {
      EXPECT_EQ(result.grad_norm, verdict.grad_norm);
    }
  }
}

}  // namespace elixir::testing
