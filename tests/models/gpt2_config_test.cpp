#include "models/gpt2_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace elixir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// small and medium are what Hugging Face reports for gpt2 and gpt2-medium; the others follow from
// layers * (12 w^2 + 13 w) + (vocabulary + context + 2) * w.
TEST(Gpt2Config, NumbersOfParameters) {
  const std::map<std::string, int64_t> expected = {
      {"nano", 3'257'856},     {"small", 124'439'808},  {"medium", 354'823'168},
      {"1b", 1'112'193'024},   {"4b", 3'782'697'984},   {"10b", 9'876'287'488},
      {"15b", 14'917'541'888}, {"20b", 19'750'019'072},
  };
  EXPECT_EQ(gpt2_configs().size(), expected.size());
  for (const auto& [name, numel] : expected) {
    const Result<Gpt2Config> config = gpt2_config(name);
    ASSERT_TRUE(config.ok()) << name;
    EXPECT_EQ(gpt2_numel(*config), numel) << name;
    EXPECT_EQ(config->head_width() * config->heads, config->width) << name;
    EXPECT_GT(config->lr, 0) << name;
  }
}

TEST(Gpt2Config, SizesOfThePaper) {
  const auto sizes = [](const char* name) {
    const Gpt2Config config = *gpt2_config(name);
    return std::vector<int64_t>{config.width, config.layers, config.heads};
  };
  EXPECT_THAT(sizes("4b"), ElementsAre(3072, 32, 24));
  EXPECT_THAT(sizes("10b"), ElementsAre(4096, 48, 32));
  EXPECT_THAT(sizes("15b"), ElementsAre(8192, 18, 64));
  EXPECT_THAT(sizes("20b"), ElementsAre(8192, 24, 64));
}

TEST(Gpt2Config, HuggingFaceNamesAndShapes) {
  const std::vector<ParameterShape> all = gpt2_parameters(*gpt2_config("small"));
  ASSERT_EQ(all.size(), 2u + 12 * 12 + 2);
  const auto expect = [&](size_t index, const char* name, std::vector<int64_t> shape) {
    EXPECT_EQ(all[index].name, name);
    EXPECT_EQ(all[index].shape, shape) << name;
  };
  expect(0, "transformer.wte.weight", {50257, 768});
  expect(1, "transformer.wpe.weight", {1024, 768});
  expect(2, "transformer.h.0.ln_1.weight", {768});
  expect(3, "transformer.h.0.ln_1.bias", {768});
  expect(4, "transformer.h.0.attn.c_attn.weight", {768, 2304});
  expect(5, "transformer.h.0.attn.c_attn.bias", {2304});
  expect(6, "transformer.h.0.attn.c_proj.weight", {768, 768});
  expect(7, "transformer.h.0.attn.c_proj.bias", {768});
  expect(8, "transformer.h.0.ln_2.weight", {768});
  expect(9, "transformer.h.0.ln_2.bias", {768});
  expect(10, "transformer.h.0.mlp.c_fc.weight", {768, 3072});
  expect(11, "transformer.h.0.mlp.c_fc.bias", {3072});
  expect(12, "transformer.h.0.mlp.c_proj.weight", {3072, 768});
  expect(13, "transformer.h.0.mlp.c_proj.bias", {768});
  expect(145, "transformer.h.11.mlp.c_proj.bias", {768});
  expect(146, "transformer.ln_f.weight", {768});
  expect(147, "transformer.ln_f.bias", {768});
}

TEST(Gpt2Config, UnknownNameNamesTheNearest) {
  const Result<Gpt2Config> config = gpt2_config("medum");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(config.status().message(), HasSubstr("did you mean 'medium'?"));
  EXPECT_THAT(gpt2_config("transformer-xl").status().message(),
              ::testing::Not(HasSubstr("did you mean")));
}

}  // namespace
}  // namespace elixir
