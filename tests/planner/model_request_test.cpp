#include "planner/models/model_request.h"

#include <sys/stat.h>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::planner {
namespace {

TEST(ModelRequest, ANameOrAFileWithTheLayersAskedFor) {
  const TemporaryFolder folder;
  const std::string path = folder.write(
      "config.json", R"({"model_type": "gpt2", "vocab_size": 100, "n_positions": 32, "n_embd": 64,
                         "n_layer": 3, "n_head": 4})");
  EXPECT_EQ(config_of({.model = "opt-125m"})->name, "opt-125m");
  EXPECT_EQ(config_of({.config_path = path})->layers, 3);
  EXPECT_EQ(config_of({.config_path = folder.path()})->layers, 3);         // a model's folder
  EXPECT_EQ(config_of({.config_path = path, .layers = 3})->name, "gpt2");  // the model's own
  const TransformerConfig deeper = must(config_of({.model = "gpt2-nano", .layers = 7}));
  EXPECT_EQ(deeper.layers, 7);
  EXPECT_EQ(deeper.name, "gpt2-nano with 7 layers");
  EXPECT_EQ(config_of({.model = "gpt2-nano", .layers = 1})->name, "gpt2-nano with 1 layer");
}

TEST(ModelRequest, SaysWhyThereIsNoModel) {
  const TemporaryFolder folder;
  const auto refusal = [](const ModelRequest& request) { return config_of(request).status(); };
  for (const ModelRequest& request :
       {ModelRequest{}, ModelRequest{.model = "a", .config_path = "b"}}) {
    expect_refused(refusal(request), Code::kInvalidArgument, {"give one of --model and --config"});
  }
  EXPECT_THAT(refusal({.model = "opt-1.4b"}).message(), HasSubstr("did you mean 'opt-1.3b'?"));
  const std::string missing = folder.path("none.json");
  expect_refused(refusal({.config_path = missing}), Code::kBadInput, {missing, "No such file"});
  expect_refused(refusal({.config_path = folder.path()}), Code::kBadInput,
                 {folder.path("config.json"), "No such file"});
  ASSERT_EQ(::mkdir(folder.path("config.json").c_str(), 0700), 0);
  EXPECT_THAT(refusal({.config_path = folder.path()}).message(), HasSubstr("an ordinary file"));
  const std::string empty = folder.write("empty.json", "{}");
  EXPECT_THAT(refusal({.config_path = empty}).message(),
              AllOf(HasSubstr("--config " + empty), HasSubstr("known: gpt2, opt, llama")));
}

}  // namespace
}  // namespace elixir::planner
