// What is imported: models as --init takes them, states that are Adam's and complete.

#include <ATen/ops/ones.h>

#include "base/text_file.h"
#include "checkpoint/load_plan.h"
#include "models/convert.h"
#include "tests/models/convert_fixture.h"
#include "tests/support/outcomes.h"

namespace elixir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ConvertTest, WithoutStatesAreAlsoThoseOfTheFlattenedFormThatGroupsName) {
  ASSERT_TRUE(import(flat_adam_of_two(1)).ok());
  const auto folder = must(checkpoints::open_stored_folder(folder_.path("step-000000007")));
  EXPECT_EQ(folder.manifest->updates_of.at("a.bias"), 0u);
  EXPECT_EQ(folder.optimizer.size(), 6u);
  const auto plan = must(checkpoints::plan_load(
      folder, std::vector<checkpoints::WantedParameter>{{"b.weight", {2, 3}}, {"a.bias", {5}}}));
}

// apex keeps it there.
TEST_F(ConvertTest, ACountOfTheGroupIsThatOfItsParameters) {
  Dict file = adam_of_two({"b.weight", "a.bias"});
  for (const char* const name : {"b.weight", "a.bias"}) {
    (void)file.at("state").toGenericDict().at(name).toGenericDict().erase("step");
  }
  EXPECT_THAT(import(file).message(), AllOf(HasSubstr("of 'b.weight'"), HasSubstr("'step'")));
  Dict group = file.at("param_groups").toList().get(0).toGenericDict();
  (void)group.erase("amsgrad");
  group.insert("bias_correction", true);
  group.insert("step", int64_t{7});
  must(import(file));
  const auto manifest = checkpoints::open_stored_folder(folder_.path("step-000000007"))->manifest;
  EXPECT_EQ(manifest->updates, 7u);
  EXPECT_TRUE(manifest->updates_of.empty());
}

TEST_F(ConvertTest, AModelThatElixirKnowsGetsItsNamesAndItsType) {
  const planner::TransformerConfig config = write_gpt2([](auto&, auto&) {});
  const std::vector<planner::NamedShape> parameters = planner::transformer_parameters(config);
  std::vector<checkpoints::WantedParameter> wanted;
  for (const bool short_names : {false, true}) {
    Dict states = dict(), file = dict();
    List params(c10::AnyType::get()), groups(c10::AnyType::get());
    wanted.clear();
    for (const planner::NamedShape& parameter : parameters) {
      Dict entry = dict();
      entry.insert("step", 7.0);
      entry.insert("exp_avg", at::ones(parameter.shape));
      entry.insert("exp_avg_sq", at::ones(parameter.shape));
      const std::string name =
          short_names ? parameter.name.substr(parameter.name.find('.') + 1) : parameter.name;
      states.insert(name, entry);
      params.push_back(name);
      wanted.push_back({parameter.name, parameter.shape});
    }
    groups.push_back(group_of(params, 0.5));
    file.insert("state", states);
    file.insert("param_groups", groups);
    must(import(file));
    const auto folder = must(checkpoints::open_stored_folder(folder_.path("step-000000007")));
    EXPECT_EQ(folder.model.size(), parameters.size()) << "the copy of the embedding is left out";
    const auto plan = must(checkpoints::plan_load(folder, wanted));
    EXPECT_EQ(
        planner::type_of_config_json(*read_text_file(folder_.path("step-000000007/config.json"))),
        ComputeType::kFp32);
  }
}

TEST_F(ConvertTest, AModelThatInitWouldRefuseIsRefused) {
  const Dict file = adam_of_two({"b.weight", "a.bias"});
  write_gpt2([](std::string& text, auto&) { text.replace(text.find("gelu_new"), 8, "gelu"); });
  EXPECT_THAT(import(file).message(), AllOf(HasSubstr("'activation_function' is \"gelu\""),
                                            HasSubstr("take config.json out")));
  write_gpt2([](std::string& text, auto&) {
    text.replace(text.find("\"n_embd\": 4"), 11, "\"n_embd\": 0");
  });
  EXPECT_THAT(import(file).message(), HasSubstr("n_embd"));
  write_gpt2([](auto&, std::string& data) { data.back() ^= 1; });
  EXPECT_THAT(import(file).message(),
              AllOf(HasSubstr("'lm_head.weight'"), HasSubstr("'wte.weight' is used in its place")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("step-000000007")));
}

TEST_F(ConvertTest, LinesOfNamesMayEndAsOnWindows) {
  folder_.write("names", kNames[0] + "\r\n\r\n" + kNames[1] + "\r\n");
  ASSERT_TRUE(import(adam_of_two(kNumbers), true).ok());
  expect_exported(kNames);
}

TEST_F(ConvertTest, OtherOptimizersAreNotTakenForAdam) {
  const auto refused = [&](const auto& change, const char* says) {
    Dict file = adam_of_two({"b.weight", "a.bias"});
    change(file.at("param_groups").toList().get(0).toGenericDict());
    expect_refused(import(file), Code::kBadInput, {says});
  };
  refused([](Dict group) { (void)group.erase("amsgrad"); }, "no 'amsgrad'");  // RAdam
  refused([](Dict group) { (void)group.erase("betas"); }, "no 'betas'");      // SGD
  refused([](Dict group) { group.insert("momentum_decay", 0.004); }, "'momentum_decay'");
  refused([](Dict group) { group.insert("grad_averaging", true); }, "'grad_averaging'");
  refused([](Dict group) { group.insert("bias_correction", false); }, "without bias correction");
  Dict flat = flat_adam_of_two(1, /*options=*/false);
  EXPECT_TRUE(import(flat).ok()) << "tensors alone";
  flat.insert("param_groups.b.weight.lr", 0.5);
  EXPECT_THAT(import(flat).message(), HasSubstr("no 'betas'"));
}

}  // namespace
}  // namespace elixir
