// What save() and state_dict() promise beside the bits of a run (resume_test.cpp).

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/throw_error.h"
#include "checkpoint/listing.h"
#include "tests/client/saved_module.h"
#include "tests/client/saved_states.h"
#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

class Saves : public WithElixird {
 protected:
  const TemporaryFolder folder_;
};

struct Plain : torch::nn::Module {
  Plain() {
    at::manual_seed(9);
    first = register_module("first", torch::nn::Linear(16, 48));
    head = register_module("head", torch::nn::Linear(48, 1));
  }
  at::Tensor loss(int64_t number) {
    const at::Tensor x = wave({8, 16}, number);
    return (head(at::tanh(first(x))) - x.sum(1, /*keepdim=*/true)).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, head{nullptr};
};

TEST_F(Saves, StateDictIsTorchsAdamW) {
  Plain ours, torchs;
  AdamW optimizer(ours, {.lr = 1e-2}, runtime());
  torch::optim::AdamW reference(torchs.parameters(), torch::optim::AdamWOptions(1e-2));
  for (int64_t i = 0; i < 6; ++i) {
    // One that has no gradient in a step counts its own.
    for (Plain* const model : {&ours, &torchs}) model->head->bias.requires_grad_(i != 2);
    optimizer.zero_grad();
    ours.loss(i).backward();
    optimizer.step();
    reference.zero_grad();
    torchs.loss(i).backward();
    reference.step();
  }
  const auto states = optimizer.state_dict();
  EXPECT_EQ(states.size(), 4u);
  EXPECT_EQ(states.at("head.bias").step, 5u);
  for (const auto& item : torchs.named_parameters()) {
    const auto& theirs = static_cast<const torch::optim::AdamWParamState&>(
        *reference.state().at(item.value().unsafeGetTensorImpl()));
    const ParameterState& state = states.at(item.key());
    EXPECT_EQ(state.step, static_cast<uint64_t>(theirs.step())) << item.key();
    const auto expect_near = [&](const at::Tensor& mine, const at::Tensor& other) {
      EXPECT_EQ(mine.sizes(), other.sizes());
      EXPECT_LT(distance(mine, other), 1e-6 * norm_of(other)) << item.key();
    };
    expect_near(state.exp_avg, theirs.exp_avg());
    expect_near(state.exp_avg_sq, theirs.exp_avg_sq());
    expect_near(state.master, item.value());
  }
}

TEST_F(Saves, WhereNoFolderCanBeIsRefusedAtOnce) {
  MixedRun run(1);
  const auto refused = [&](const std::string& path, const SaveOptions& options = {}) {
    return refusal_of([&] { run.optimizer.save(path, options); }, Code::kInvalidArgument);
  };
  const std::string there = folder_.path("there");
  std::filesystem::create_directory(there);
  std::filesystem::create_symlink("nowhere", folder_.path("link"));
  folder_.write("file", "text");
  EXPECT_THAT(refused(there), AllOf(HasSubstr(there), HasSubstr("already")));
  EXPECT_THAT(refused(folder_.path("link")), HasSubstr("already"));
  EXPECT_THAT(refused(folder_.path("file")), HasSubstr("already"));
  EXPECT_THAT(refused(folder_.path("none/model")), AllOf(HasSubstr("none"), HasSubstr("missing")));
  EXPECT_THAT(refused(folder_.path("file/model")), HasSubstr("not a folder"));
  EXPECT_THAT(refused(folder_.path("..")), HasSubstr(".."));
  EXPECT_THAT(refused(folder_.path("a b")), HasSubstr("a b"));
  EXPECT_THAT(refused(folder_.path("elixir.json")), HasSubstr("give it another"));
  EXPECT_THAT(refused(""), HasSubstr("name"));
  EXPECT_THAT(refused(folder_.path("model"), {.files = {{"../config.json", ""}}}),
              HasSubstr("../config.json"));
  EXPECT_THAT(refused(folder_.path("model"), {.files = {{"elixir.json", ""}}}),
              HasSubstr("elixir.json"));
  EXPECT_THAT(refused(folder_.path("model"), {.files = {{"a", ""}, {"a", ""}}}),
              HasSubstr("twice"));
  if (::geteuid() != 0) {
    ::chmod(there.c_str(), 0500);
    EXPECT_THAT(refused(there + "/model"), HasSubstr("writable"));
    ::chmod(there.c_str(), 0700);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path("model")));
  run.optimizer.save(folder_.path("model")).wait();  // and the run can be saved
  EXPECT_TRUE(is_checkpoint(folder_.path("model")));
}

TEST_F(Saves, BetweenBackwardAndStepAndInsideGatheredIsRefused) {
  MixedRun run(1);
  const auto save = [&] { run.optimizer.save(folder_.path("model")); };
  run.model.loss(1).backward();
  EXPECT_THAT(refusal_of(save, Code::kInvalidArgument), HasSubstr("between backward() and step()"));
  EXPECT_THAT(refusal_of([&] { (void)run.optimizer.state_dict(); }, Code::kInvalidArgument),
              HasSubstr("between backward() and step()"));
  run.optimizer.step();
  {
    const auto scope = gathered({run.model.head->weight});
    EXPECT_THAT(refusal_of(save, Code::kInvalidArgument), HasSubstr("gathered"));
  }
  run.optimizer.save(folder_.path("model")).wait();
  EXPECT_THAT(refusal_of(
                  [&] {
                    run.model.loss(2).backward();
                    run.optimizer.load(folder_.path("model"));
                  },
                  Code::kInvalidArgument),
              HasSubstr("load() between backward() and step()"));
  run.optimizer.step();
  run.optimizer.release();
  EXPECT_THAT(refusal_of(save, Code::kInvalidArgument), HasSubstr("release"));
}

TEST_F(Saves, BeforeTheFirstStepIsPossible) {
  MixedRun run;
  EXPECT_EQ(run.optimizer.save(folder_.path("model")).wait().step, 0u);
  MixedRun loaded(0, runtime(folder_.path("model")));
  EXPECT_EQ(loaded.weights(), run.weights());
  EXPECT_EQ(loaded.optimizer.steps(), 0u);
}

TEST_F(Saves, TheOptimizerMayEndBeforeTheSave) {
  const auto expect_end = [](Saving saving) {
    try {
      EXPECT_EQ(saving.wait().step, 1u);
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), Code::kUnavailable) << failure.what();
    }
  };
  for (int round = 0; round < 5; ++round) {
    const std::string saved = folder_.path("model-" + std::to_string(round));
    std::optional<Saving> saving;
    std::thread waits;
    uint64_t weights = 0;
    {
      MixedRun run(1);
      saving.emplace(run.optimizer.save(saved));
      waits = std::thread(expect_end, *saving);
      weights = run.weights();
    }
    waits.join();
    EXPECT_TRUE(saving->done());
    EXPECT_GE(saving->progress(), 0);
    expect_end(*saving);
    // elixird writes on.
    EXPECT_TRUE(eventually([&] { return is_checkpoint(saved); }));
    MixedRun loaded(0, runtime(saved));
    EXPECT_EQ(loaded.weights(), weights);
  }
}

TEST_F(Saves, OneJobWritesIntoAFolder) {
  MixedRun run(1);
  run.optimizer.save(folder_.path("first")).wait();
  const UniqueFd parent(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY));
  expect_refused(checkpoints::lock_folder(parent.get(), 0).status(), Code::kAlreadyRunning,
                 {folder_.path()});
  run.optimizer.save(folder_.path("second")).wait();  // the same job may
}

TEST_F(Saves, SeveralOneBehindAnotherAreAllThere) {
  MixedRun run;
  std::vector<Saving> savings;
  std::vector<uint64_t> weights;
  for (int i = 0; i < 9; ++i) {
    run.train(i, 1);
    savings.push_back(run.optimizer.save(folder_.path("step-" + std::to_string(i))));
    weights.push_back(run.weights());
  }
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(savings[i].wait().step, static_cast<uint64_t>(i + 1));
    EXPECT_EQ(run.optimizer.load(folder_.path("step-" + std::to_string(i))).step,
              static_cast<uint64_t>(i + 1));
    EXPECT_EQ(run.weights(), weights[i]) << i;
  }
}

TEST_F(Saves, OldOnesGo) {
  MixedRun run;
  for (int i = 1; i <= 6; ++i) {
    run.train(i, 1);
    run.optimizer.save(folder_.path(checkpoints::step_name(i)), {.keep = 2, .keep_every = 3})
        .wait();
  }
  std::vector<uint64_t> left;
  for (const auto& listed : *checkpoints::list_checkpoints(folder_.path())) {
    EXPECT_TRUE(listed.valid) << listed.why;
    left.push_back(listed.step);
  }
  EXPECT_THAT(left, ElementsAre(3, 5, 6));
}

TEST_F(Saves, AllRanksSeeWhatOneAsks) {
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    TrainingPlan plan;
    plan.ranks = 2;
    plan.batch = 1;
    plan.steps = 5;
    plan.exchange = exchange;
    plan.looks = [](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
      if (rank == 1 && steps == 1) optimizer.ask_all(/*save=*/true, /*stop=*/false);
      if (rank == 0 && steps == 3) optimizer.ask_all(/*save=*/false, /*stop=*/true);
      if (steps == 0) return;
      EXPECT_EQ(optimizer.outcome().save_asked, steps == 2) << steps;
      EXPECT_EQ(optimizer.outcome().stop_asked, steps == 4) << steps;
    };
    train_through_elixird(plan);
  }
}

TEST_F(Saves, AnotherRuleOrTypeIsSaid) {
  const std::string saved = folder_.path("model");
  {
    Mixed model;
    AdamW(model, {.lr = 1e-2}, runtime(), groups_of(model)).save(saved).wait();
  }
  const auto log_of = [&](const auto& load) {
    Mixed model;
    ::testing::internal::CaptureStderr();
    load(model);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(log_of([&](Mixed& model) {
                const AdamW same(model, {.lr = 1e-2}, runtime(saved), groups_of(model));
              }),
              Not(HasSubstr("event=other_")));
  EXPECT_THAT(log_of([&](Mixed& model) {
                const Adam other(model, {.lr = 1e-2}, runtime(saved), groups_of(model));
              }),
              HasSubstr("event=other_rule now=adam in_the_folder=adamw"));
  Options options = runtime(saved);
  options.dtype = ComputeType::kBf16;
  EXPECT_THAT(log_of([&](Mixed& model) {
                const AdamW other(model, {.lr = 1e-2}, options, groups_of(model));
              }),
              HasSubstr("event=other_type now=bf16 in_the_folder=fp32"));
}

}  // namespace
}  // namespace elixir::test
