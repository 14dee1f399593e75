// Swing chunks by a real elixird, sessions and a SwingRunner a rank, without torch: every way in
// which chunks, lanes, types, ranks and verdicts meet has the bits of the scalar reference, which
// knows nothing of them, and moves as many bytes as it must.
//
//   ELIXIR_EVERY_CASE=1  every case; else one of eight, under a sanitizer of sixty-four

#include "client/exchange/swing_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/compute_type_names.h"
#include "client/device/paced_device.h"
#include "tests/client/with_elixird.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/every_case.h"
#include "tests/support/patience.h"
#include "tests/support/run_threads.h"
#include "tests/support/sanitized.h"

namespace elixir::test {
namespace {

using testing::fake_gradient;
using testing::FakeModel;
using testing::initial_values;
using testing::make_model;
using testing::make_record;
using testing::Reference;

constexpr uint64_t kChunkNumel = 128 * 5;
constexpr uint32_t kSteps = 4;
constexpr uint32_t kShare = kSanitized ? 64 : 8;

enum class Verdicts { kPlain, kClip, kSkip, kAccumulate };

struct Case {
  ComputeType type = ComputeType::kBf16;
  uint32_t ranks = 1, chunks = 4, swing = 2, lanes = 2;
  Verdicts verdicts = Verdicts::kPlain;
  shm::Exchange exchange = shm::Exchange::kHost;
  uint64_t chunk_numel = kChunkNumel;
  uint32_t steps = kSteps;
  std::optional<HostLink> link = {};

  uint32_t rounds() const { return verdicts == Verdicts::kAccumulate ? 2 : 1; }
  std::string name() const {
    return fmt::format("{} x{} {} of {} in {} lanes, verdicts {}", compute_type_name(type), ranks,
                       swing, chunks, lanes, static_cast<int>(verdicts));
  }
  FakeModel model() const {
    FakeModel model = make_model(type, ranks, chunks, chunk_numel);
    model.shape.exchange = exchange;
    model.shape.n_swing_chunks = swing;
    model.shape.n_swing_lanes = swing > 0 ? lanes : 0;
    if (verdicts == Verdicts::kSkip) model.poison_step = 2;
    return model;
  }
  shm::StepRecord record(uint32_t step) const {
    shm::StepRecord record = make_record(step, ranks);
    if (verdicts == Verdicts::kClip) record.clip_norm = 1e-2;
    if (verdicts == Verdicts::kSkip) record.check_finite = 1;
    return record;
  }
  shm::StepRules rules() const {
    shm::StepRules rules;
    rules.accumulate = rounds();
    rules.norms = verdicts == Verdicts::kClip || verdicts == Verdicts::kSkip ? 1 : 0;
    return rules;
  }
};

// Of one rank.
struct Outcome {
  std::string wrong;
  uint64_t h2d_bytes = 0, d2h_bytes = 0;
  double swing_s = 0;  // from the verdict to the finished step, of all steps
};

Status publish(Session& session, const FakeModel& model, uint32_t step, uint32_t round,
               uint32_t rounds) {
  const shm::Shape& shape = model.shape;
  for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) {
    if (round == 1) {
      ELIXIR_RETURN_IF_ERROR(session.wait_param(chunk, step - 1));
    } else {
      ELIXIR_RETURN_IF_ERROR(session.wait_taken(chunk));
    }
    const auto grads = fake_gradient(model, session.rank(), chunk, step, round);
    std::memcpy(session.grad_slot(chunk), grads.data(), grads.size());
    ELIXIR_RETURN_IF_ERROR(session.publish_grad(
        chunk, {.step = step, .micro_step = round, .discards = 0, .to_sum = rounds > 1}));
  }
  return Status();
}

Status train(const Case& of, Session& session, SwingRunner* runner, Outcome* outcome) {
  const FakeModel model = of.model();
  if (session.rank() == 0) {
    const auto values = initial_values(model);
    for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
      ELIXIR_RETURN_IF_ERROR(session.load_chunk(chunk, values[chunk].data()));
    }
  }
  ELIXIR_RETURN_IF_ERROR(session.await_loaded());
  for (uint32_t step = 1; step <= of.steps; ++step) {
    for (uint32_t i = 0; i < model.places.size(); ++i) session.say_gradient(step, i, 0);
    for (uint32_t round = 1; round <= of.rounds(); ++round) {
      ELIXIR_RETURN_IF_ERROR(publish(session, model, step, round, of.rounds()));
    }
    ELIXIR_RETURN_IF_ERROR(session.post_step(of.record(step)));
    if (runner != nullptr) runner->post(step);
    const auto committed = session.wait_committed(step);
    if (!committed.ok()) return committed.status();
    const int64_t begin_ns = monotonic_ns();
    ELIXIR_RETURN_IF_ERROR(session.wait_finished(step));
    outcome->swing_s += seconds_since(begin_ns);
    session.forget_gradients(step + 1);
  }
  return Status();
}

// The first that differs, of the whole chunks; "": nothing.
std::string compare(const Session& session, const FakeModel& model, const Reference& reference) {
  const shm::Shape& shape = model.shape;
  for (const shm::ParameterPlace& place : model.places) {
    std::vector<float> master(shape.chunk_numel), first(shape.chunk_numel),
        second(shape.chunk_numel);
    for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
      const uint64_t at = shape.shard_begin(rank);
      session.read_masters(place.chunk, rank, master.data() + at);
      session.read_moment(place.chunk, rank, 0, first.data() + at);
      session.read_moment(place.chunk, rank, 1, second.data() + at);
    }
    const auto differs = [&](const std::vector<float>& have, const std::vector<float>& want) {
      return std::memcmp(have.data() + place.offset, want.data() + place.offset,
                         place.numel * sizeof(float)) != 0;
    };
    if (differs(master, reference.masters(place.chunk))) return place.name + "'s master";
    if (differs(first, reference.exp_avg(place.chunk))) return place.name + "'s exp_avg";
    if (differs(second, reference.exp_avg_sq(place.chunk))) return place.name + "'s exp_avg_sq";
  }
  return "";
}

std::vector<Outcome> run(const Case& of) {
  static uint32_t runs = 0;
  const std::string job = fmt::format("swing-{}", ++runs);
  const FakeModel model = of.model();
  Reference reference(model);
  for (uint32_t step = 1; step <= of.steps; ++step) reference.step(of.record(step), of.rounds());
  std::vector<Outcome> outcomes(of.ranks);
  run_threads(of.ranks, [&](uint32_t rank) {
    Outcome& outcome = outcomes[rank];
    PacedDevice device({.link = of.link});
    SessionOptions options;
    options.job = job;
    options.rank = options.local_rank = rank;
    options.local_ranks = of.ranks;
    options.start_daemon = false;
    options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
    options.rules = of.rules();
    auto session = Session::attach(model.shape, model.places, options);
    if (!session.ok()) {
      outcome.wrong = session.status().message();
      return;
    }
    std::unique_ptr<SwingRunner> runner;
    if (of.swing > 0) runner = std::make_unique<SwingRunner>(**session, device, model.places);
    const Status status = train(of, **session, runner.get(), &outcome);
    outcome.wrong = status.ok() ? compare(**session, model, reference) : status.message();
    outcome.h2d_bytes = device.h2d_bytes();
    outcome.d2h_bytes = device.d2h_bytes();
    // The others read its memory until they, too, have compared.
    const Status waited = (*session)->await_loaded();
    if (outcome.wrong.empty()) outcome.wrong = waited.message();
  });
  return outcomes;
}

class Swing : public WithElixird {};

// Numbers of chunks up to 12 with up to 3 on the device, of which every k-th swings, k up to 6:
// what the session sees of them is how many there are and how many of these swing.
std::set<std::pair<uint32_t, uint32_t>> chunks_and_swinging() {
  std::set<std::pair<uint32_t, uint32_t>> all;
  for (uint32_t n = 1; n <= 12; ++n) {
    for (uint32_t k = 1; k <= 6; ++k) {
      for (uint32_t residents = 0; residents <= 3 && residents < n; ++residents) {
        const uint32_t on_host = n - residents;
        if (on_host / k > 0) all.insert({on_host, on_host / k});
      }
    }
  }
  return all;
}

TEST_F(Swing, EveryCaseHasTheBitsOfNone) {
  const bool every = every_case();
  uint32_t number = 0, made = 0;
  for (const auto& [chunks, swing] : chunks_and_swinging()) {
    for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
      for (const uint32_t ranks : {1u, 2u}) {
        for (const uint32_t lanes : {2u, 3u}) {
          for (int verdicts = 0; verdicts < 4; ++verdicts, ++number) {
            if (!every && number % kShare != number / kShare % kShare) continue;
            const Case of{.type = type,
                          .ranks = ranks,
                          .chunks = chunks,
                          .swing = swing,
                          .lanes = lanes,
                          .verdicts = static_cast<Verdicts>(verdicts)};
            ++made;
            const std::vector<Outcome> outcomes = run(of);
            for (const Outcome& outcome : outcomes) ASSERT_EQ(outcome.wrong, "") << of.name();
          }
        }
      }
    }
  }
  std::printf("%u of %u cases\n", made, number);
}

// A step moves every swing chunk's states up and down once, and each rank's gradients of it up.
TEST_F(Swing, MovesTheBytesOfItsStatesAndGradientsAlone) {
  for (const uint32_t ranks : {1u, 2u}) {
    for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
      const Case of{.type = type, .ranks = ranks, .chunks = 5, .swing = 3};
      const shm::Shape shape = of.model().shape;
      const uint64_t times = uint64_t{of.swing} * of.steps;
      const uint64_t states = element_bytes(type) + master_bytes(type) + 2 * sizeof(float);
      const std::vector<Outcome> outcomes = run(of);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(outcomes[rank].wrong, "");
        EXPECT_EQ(outcomes[rank].d2h_bytes, times * states * shape.shard_numel());
        const uint64_t numel = shape.shard_end(rank) - shape.shard_begin(rank);
        EXPECT_EQ(outcomes[rank].h2d_bytes,
                  times * (states * shape.shard_numel() + ranks * numel * element_bytes(type)));
      }
    }
  }
}

// Copies and updates of different lanes lie beside one another: a step takes what the busier
// direction of the link takes, and the last chunk's way down. Of three times the best counts. On
// busy processors and under sanitizers updates take longer: the bound lies far from 1.6 and from 1.
TEST_F(Swing, LanesFillASlowLink) {
  constexpr double kBytesPerS = 0.02e9;
  constexpr double kMost = 1.3;
  Case of{.type = ComputeType::kBf16, .chunks = 6, .swing = 6, .lanes = 3};
  of.chunk_numel = uint64_t{1} << 17;
  of.steps = 2;
  of.link = HostLink{.h2d_gb_s = kBytesPerS * 1e-9, .d2h_gb_s = kBytesPerS * 1e-9};
  double best = 1e9;
  for (int attempt = 0; attempt < 8 && best > kMost; ++attempt) {
    const Outcome outcome = run(of)[0];
    ASSERT_EQ(outcome.wrong, "");
    const double up_s = static_cast<double>(outcome.h2d_bytes) / kBytesPerS;
    const double last_s = static_cast<double>(outcome.d2h_bytes) / kBytesPerS / of.swing;
    if (outcome.swing_s < 0.95 * up_s) continue;  // begun while this thread still slept
    best = std::min(best, outcome.swing_s / (up_s + last_s));
  }
  // cannot fail by chance: client_swing_lanes_test alone runs it, with the label timing.
  EXPECT_LT(best, kMost) << "one after another: 1.6";
}

// A device whose runner begins late, as on busy processors.
class LateDevice final : public HostDevice {
 public:
  // cannot fail by chance: a runner that is less late only shows less.
  void make_current() override { std::this_thread::sleep_for(std::chrono::milliseconds(300)); }
};

// One rank, all of whose steps are skipped.
class SkippedSteps : public Swing {
 protected:
  SkippedSteps() : model_(of().model()) {
    static uint32_t runs = 0;
    SessionOptions options;
    options.job = fmt::format("skipped-{}", ++runs);
    options.start_daemon = false;
    options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
    options.rules = of().rules();
    auto session = Session::attach(model_.shape, model_.places, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    session_ = std::move(*session);
    const auto values = initial_values(model_);
    for (uint32_t chunk = 0; chunk < model_.shape.n_chunks; ++chunk) {
      EXPECT_TRUE(session_->load_chunk(chunk, values[chunk].data()).ok());
    }
    EXPECT_TRUE(session_->await_loaded().ok());
  }

  static Case of() { return {.type = ComputeType::kFp32, .verdicts = Verdicts::kSkip}; }

  void post(uint32_t step, SwingRunner& runner) {
    for (uint32_t i = 0; i < model_.places.size(); ++i) session_->say_gradient(step, i, 0);
    for (uint32_t chunk = 0; chunk < model_.shape.n_chunks; ++chunk) {
      ASSERT_TRUE(session_->wait_param(chunk, step - 1).ok());
      std::memset(session_->grad_slot(chunk), 0, model_.shape.chunk_bytes());
      const float infinite = std::numeric_limits<float>::infinity();
      std::memcpy(session_->grad_slot(chunk), &infinite, sizeof infinite);
      ASSERT_TRUE(
          session_
              ->publish_grad(chunk, {.step = step, .micro_step = 1, .discards = 0, .to_sum = false})
              .ok());
    }
    ASSERT_TRUE(session_->post_step(of().record(step)).ok());
    runner.post(step);
    const auto committed = session_->wait_committed(step);
    ASSERT_TRUE(committed.ok()) << committed.status().message();
    EXPECT_NE(committed->skipped, 0u);
    session_->forget_gradients(step + 1);
  }

  LateDevice device_;
  const FakeModel model_;
  std::unique_ptr<Session> session_;
};

// Whose session stays well: it says goodbye, and no other rank hears of a death.
TEST_F(SkippedSteps, MayBeOverBeforeARunnerThatEndsHasSeenThem) {
  {
    SwingRunner runner(*session_, device_, model_.places);
    ASSERT_NO_FATAL_FAILURE(post(1, runner));
    ASSERT_TRUE(session_->wait_finished(1).ok());
  }
  const Status status = session_->await_loaded();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(SkippedSteps, InARowWaitForARunnerThatIsLate) {
  constexpr uint32_t kInARow = 3 * shm::kStepRing;
  {
    SwingRunner runner(*session_, device_, model_.places);
    for (uint32_t step = 1; step <= kInARow; ++step) {
      ASSERT_NO_FATAL_FAILURE(post(step, runner));
    }
    ASSERT_TRUE(session_->wait_finished(kInARow).ok());
  }
  const Status status = session_->await_loaded();
  EXPECT_TRUE(status.ok()) << status.message();
}

// Two ranks, the second one later than rank 0 waits for elixird alone; what their waits end with.
std::array<Status, 2> wait_for_a_late_rank(double limit_s) {
  const Case of{.type = ComputeType::kFp32, .ranks = 2};
  const FakeModel model = of.model();
  std::array<Status, 2> waited;
  run_threads(2, [&](uint32_t rank) {
    HostDevice device;
    SessionOptions options;
    options.job = fmt::format("late-rank-{}", limit_s);
    options.rank = options.local_rank = rank;
    options.local_ranks = 2;
    options.start_daemon = false;
    options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
    auto session = Session::attach(model.shape, model.places, options);
    ASSERT_TRUE(session.ok()) << session.status().message();
    SwingRunner runner(**session, device, model.places);
    const auto values = initial_values(model);
    for (uint32_t chunk = 0; rank == 0 && chunk < model.shape.n_chunks; ++chunk) {
      ASSERT_TRUE((*session)->load_chunk(chunk, values[chunk].data()).ok());
    }
    ASSERT_TRUE((*session)->await_loaded().ok());
    if (rank == 0) (*session)->set_request_timeout_s(limit_s);
    for (uint32_t i = 0; i < model.places.size(); ++i) (*session)->say_gradient(1, i, 0);
    ASSERT_TRUE(publish(**session, model, 1, 1, 1).ok());
    ASSERT_TRUE((*session)->post_step(of.record(1)).ok());
    // cannot fail by chance: the rank may be as late as it likes.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::duration<double>(2.25 * limit_s));
    runner.post(1);
    waited[rank] = (*session)->wait_committed(1).status();
    if (waited[rank].ok()) waited[rank] = (*session)->wait_param(model.shape.n_chunks - 1, 1);
    if (waited[rank].ok()) waited[rank] = (*session)->wait_finished(1);
    (*session)->set_request_timeout_s(kPatienceS);
    EXPECT_TRUE((*session)->wait_finished(1).ok() && (*session)->await_loaded().ok());
  });
  return waited;
}

// The limit of a wait for elixird alone does not count what the other rank takes.
TEST_F(Swing, WhoWaitsForAnotherRanksUpdateDoesNotBlameElixird) {
  EXPECT_TRUE(widen(0.3, [](double limit_s) {  // elixird itself may be late on a busy machine
    const auto [first, second] = wait_for_a_late_rank(limit_s);
    return first.ok() && second.ok();
  }));
}

}  // namespace
}  // namespace elixir::test
