#include "checkpoint/manifest.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

std::string sealed(std::string_view inner) {
  return fmt::format("{{\"manifest\":{},\"xxh3\":\"{:016x}\"}}\n", inner,
                     xxh3_of(std::as_bytes(std::span(inner))));
}
std::string inner_of(const Manifest& manifest) {
  return json::parse(encode_manifest(manifest))["manifest"].dump();
}
std::string refusal(std::string_view text) {
  return refusal_of(decode_manifest(text).status(), Code::kBadInput);
}

TEST(Manifest, ReadsAsItWasWritten) {
  SmallCheckpoint checkpoint;
  Manifest extreme = checkpoint.manifest;
  extreme.step = uint64_t{1} << 53;
  extreme.type = ComputeType::kFp16;
  extreme.rule = UpdateRule::kAdam;
  extreme.optimizer_states = false;
  // Numbers whose bits would not survive a few digits.
  extreme.groups = {{0.1 + 0.2, 1.0 / 3, {std::numeric_limits<double>::denorm_min(), -0.0, 1e308}}};
  extreme.loss_scale = {std::numeric_limits<double>::max(), UINT32_MAX};
  extreme.group_of = {};
  extreme.updates_of = {{"a \"name\" of 2 words \xc3\xa9", 0}};
  extreme.program = std::string("text\0with a zero", 16) + std::string(1000, '\n');
  extreme.files = {{"empty", 0, {}}, {"a/b", 3, {{1, UINT64_MAX}, {2, 0}}}};
  Manifest lacking = checkpoint.manifest;
  lacking.left_out = {300'000, 137'000'000'000, UINT64_MAX};
  extreme.health = {.not_finite = 137'000'000'000, .finite_step = false};
  lacking.health.emplace();
  Manifest alone = lacking;
  alone.states_alone = true;
  for (const Manifest& manifest : {Manifest(), checkpoint.manifest, extreme, lacking, alone}) {
    const Manifest read = must(decode_manifest(encode_manifest(manifest)));
    EXPECT_EQ(read, manifest);
  }
}

// The hash covers what is said, and what is around it is compared: there is no third kind of byte.
TEST(Manifest, EveryBitCounts) {
  const std::string good = encode_manifest(SmallCheckpoint().manifest);
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      ASSERT_FALSE(decode_manifest(bad).ok()) << "byte " << i << " bit " << bit;
    }
    ASSERT_FALSE(decode_manifest(good.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(decode_manifest(good + " ").ok());
  EXPECT_TRUE(decode_manifest(good).ok());
}

TEST(Manifest, WhatIsNoManifestSaysSo) {
  for (const char* text : {"", "{}", "{\"manifest\":{},\"xxh3\":\"\"}\n"}) {
    EXPECT_THAT(refusal(text), HasSubstr("not a checkpoint's manifest, or damaged"));
  }
  std::string other = encode_manifest(Manifest());
  other[other.find("step")] = 'S';
  EXPECT_THAT(refusal(other), HasSubstr("damaged: its hash"));
  EXPECT_THAT(refusal(sealed("{}")), HasSubstr("its format is not"));
  EXPECT_THAT(refusal(sealed("{")), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(sealed(std::string(100'000, '['))), HasSubstr("deeper than"));
  EXPECT_THAT(refusal(std::string(kMaxManifestBytes + 1, '[')),
              HasSubstr("the limit for a manifest"));
  EXPECT_THAT(refusal(sealed("[" + std::string(9'000'000, ' ').replace(0, 1, "1") + "]")),
              HasSubstr("format"));
  std::string wide = "[0";
  for (int i = 0; i < 4'000'001; ++i) wide += ",0";
  EXPECT_THAT(refusal(sealed(wide + "]")), HasSubstr("more than 4000000 values"));
}

TEST(Manifest, AnotherVersionIsNamed) {
  json value = json::parse(inner_of(Manifest()));
  value["version"] = 2;
  EXPECT_THAT(refusal(sealed(value.dump())),
              AllOf(HasSubstr("format version 2"), HasSubstr("reads version 1")));
}

// With a hash that fits: somebody wrote it so.
TEST(Manifest, ValuesOutOfRangeAreRefused) {
  Manifest lacking = SmallCheckpoint().manifest;
  lacking.left_out.emplace();
  lacking.health.emplace();
  const json good = json::parse(inner_of(lacking));
  ASSERT_TRUE(decode_manifest(sealed(good.dump())).ok());
  const struct {
    const char* where;
    json value;
    const char* message;
  } cases[] = {
      {"/step", -1, "'step' is not a whole number"},
      {"/step", 1.5, "'step'"},
      {"/step", "1", "'step'"},
      {"/step", (uint64_t{1} << 53) + 1, "'step'"},
      {"/updates", nullptr, "'updates'"},
      {"/type", "fp64", "'fp64' is not known; use bf16, fp16 or fp32"},
      {"/type", 1, "'type'"},
      {"/rule", "sgd", "the rule 'sgd' is not known"},
      {"/optimizer_states", 1, "'optimizer_states'"},
      {"/ranks", 0, "'ranks'"},
      {"/ranks", uint64_t{1} << 32, "'ranks'"},
      {"/groups", json::object(), "'groups' is not a list"},
      {"/groups/0", 7, "'lr'"},
      {"/groups/0/lr", "0.1", "'lr' is not a number"},
      {"/groups/0/hyper", {0.9, 0.95}, "'hyper' has 2 values, adamw has 3"},
      {"/groups/0/hyper/1", nullptr, "'hyper' is not a number"},
      {"/loss_scale", 1, "'loss_scale' is not an object"},
      {"/loss_scale/value", 0, "not above 0"},
      {"/loss_scale/value", nullptr, "'loss_scale.value'"},
      {"/loss_scale/good_steps", uint64_t{1} << 32, "good_steps"},
      {"/updates_of", json::array(), "'updates_of' is not an object"},
      {"/updates_of/h.0.b", -3, "'updates_of'"},
      {"/group_of/h.0.b", 2, "'group_of' is not a whole number from 0 to 1"},
      {"/left_out", 1, "'left_out' is not an object"},
      {"/left_out", json::object(), "'parameters' is missing"},
      {"/left_out/parameters", -1, "'left_out.parameters'"},
      {"/left_out/bytes", (uint64_t{1} << 62) + 1, "'left_out.bytes'"},
      {"/left_out/hash", "0123456789ABCDEF", "'left_out.hash' is not 16 digits"},
      {"/states_alone", 1, "'states_alone'"},
      {"/health", 1, "'health' is not an object"},
      {"/health", json::object(), "'not_finite' is missing"},
      {"/health/not_finite", -1, "'health.not_finite'"},
      {"/health/finite_step", 1, "'health.finite_step'"},
      {"/program", std::string(kMaxProgramBytes + 1, 'x'), "'program'"},
      {"/files", "x", "'files' is not a list"},
      {"/files/0/name", "../x", "cannot be the name of a file of a checkpoint"},
      {"/files/0/name", "/etc/passwd", "cannot be the name"},
      {"/files/0/name", "a/b/c", "cannot be the name"},
      {"/files/0/name", "elixir.json", "cannot be the name"},
      {"/files/0/name", "model-00001-of-00002.safetensors", "listed twice"},
      {"/files/0/name", std::string(600, 'x'), "'name'"},
      {"/files/0/bytes", 1, "would have 1 bytes, its pieces"},
      {"/files/0/bytes", (uint64_t{1} << 62) + 1, "'bytes'"},
      {"/files/0/pieces/0/0", 0, "'pieces'"},
      {"/files/0/pieces/0/0", kMaxPieceBytes + 1, "'pieces'"},
      {"/files/0/pieces/0/1", "0123456789abcde", "not 16 digits"},
      {"/files/0/pieces/0/1", "0123456789ABCDEF", "not 16 digits"},
      {"/files/0/pieces/0/1", "-123456789abcdef", "not 16 digits"},
      {"/files/0/pieces/0", 7, "not pairs"},
  };
  for (const auto& bad : cases) {
    json value = good;
    value[json::json_pointer(bad.where)] = bad.value;
    EXPECT_THAT(refusal(sealed(value.dump())), HasSubstr(bad.message)) << bad.where;
  }
  for (const auto& [name, field] : good.items()) {
    json value = good;
    value.erase(name);
    if (name == "left_out" || name == "health") continue;  // of some
    EXPECT_FALSE(decode_manifest(sealed(value.dump())).ok()) << "without " << name;
  }
}

// Whoever reads them compares values with what is left out, and needs the states.
TEST(Manifest, StatesAloneSayWhatIsLeftOut) {
  Manifest alone = SmallCheckpoint().manifest;
  alone.left_out.emplace();
  alone.states_alone = true;
  const json good = json::parse(inner_of(alone));
  EXPECT_TRUE(decode_manifest(sealed(good.dump())).ok());
  json without = good;
  without.erase("left_out");
  EXPECT_THAT(refusal(sealed(without.dump())), HasSubstr("'states_alone' is true"));
  without = good;
  without["optimizer_states"] = false;
  EXPECT_THAT(refusal(sealed(without.dump())), HasSubstr("'states_alone' is true"));
}

TEST(Manifest, NamesOfFiles) {
  for (const std::string& name : {std::string("a"), std::string("a-b_c.D0"), std::string("user/x"),
                                  std::string("..."), std::string(255, 'x')}) {
    EXPECT_TRUE(is_file_name(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("/a"), std::string("a/"),
        std::string("a/b/c"), std::string("../a"), std::string("a/.."), std::string("a//b"),
        std::string("a b"), std::string("a\0b", 3), std::string("\xc3\xa9"),
        std::string(256, 'x')}) {
    EXPECT_FALSE(is_file_name(name)) << name;
  }
}

}  // namespace
}  // namespace elixir::checkpoints
