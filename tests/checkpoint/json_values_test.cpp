#include "checkpoint/json_values.h"

#include <sys/resource.h>

#include <functional>
#include <random>
#include <string>

#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

bool within(std::string_view text, int depth, size_t values) {
  return check_json_limits(text, {.depth = depth, .values = values}).ok();
}

TEST(JsonLimits, DepthAndValuesAreCountedAsTheParserTakesThem) {
  const std::string text = R"( {"a[{": [1, -2.5e3 ,true,"x\"]"], "b\\\\":{}, "":null} )";
  ASSERT_TRUE(json::accept(text));
  constexpr size_t kValues = 1 + 3 + 1 + 4 + 1 + 1;  // the whole, names, a list of four, two more
  EXPECT_TRUE(within(text, 2, kValues));
  EXPECT_FALSE(within(text, 2, kValues - 1));
  EXPECT_FALSE(within(text, 1, kValues));
  EXPECT_EQ(parse_json(text)->size(), 3u);
}

// Depth and values of what a parser made of a text: a name is one, too.
std::pair<int, size_t> limits_of(const json& value) {
  if (!value.is_structured()) return {0, 1};
  int depth = 0;
  size_t values = 1 + (value.is_object() ? value.size() : 0);
  for (const json& inner : value) {
    const auto [inner_depth, inner_values] = limits_of(inner);
    depth = std::max(depth, inner_depth);
    values += inner_values;
  }
  return {depth + 1, values};
}

// Whatever is written in strings, and of whatever kind the values are.
TEST(JsonLimits, RandomValuesAreCounted) {
  std::mt19937 random(7);
  const auto below = [&random](uint32_t most) { return random() % most; };
  const auto text = [&] {
    constexpr std::string_view kLetters = "a\"\\[]{},: \n";
    std::string text;
    while (below(4) != 0) text += kLetters[below(kLetters.size())];
    return text;
  };
  const std::function<json(int)> make = [&](int depth) -> json {
    const uint32_t kind = depth < 6 ? below(6) : below(4);
    const json plain[] = {text(), below(2) == 0, -1.5e7 * below(1000), nullptr};
    if (kind < std::size(plain)) return plain[kind];
    json all = kind == 4 ? json::array() : json::object();
    for (uint32_t i = below(5); i > 0; --i) {
      if (kind == 4) all.push_back(make(depth + 1));
      if (kind == 5) all[text()] = make(depth + 1);
    }
    return all;
  };
  for (int i = 0; i < 500; ++i) {
    const json all = make(0);
    const auto [depth, values] = limits_of(all);
    for (const int indent : {-1, 0, 3}) {
      const std::string text = all.dump(indent);
      EXPECT_TRUE(within(text, depth, values)) << text;
      EXPECT_FALSE(within(text, depth, values - 1)) << text;
    }
  }
}

// In no more memory than the text has, and not to its end.
TEST(JsonLimits, WhatIsDeepIsRefusedBeforeItIsParsed) {
  for (const char* part : {"[", "{\"a\":", "[[],", "[\"]\","}) {
    std::string deep;
    while (deep.size() < (32u << 20)) deep += part;
    rusage before{}, after{};
    ASSERT_EQ(::getrusage(RUSAGE_SELF, &before), 0);
    const Result<json> parsed = parse_json(deep);
    ASSERT_EQ(::getrusage(RUSAGE_SELF, &after), 0);
    expect_refused(parsed.status(), Code::kBadInput, {"deeper than 8"});
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 4 << 10) << part;  // KiB
  }
}

TEST(JsonLimits, WhatIsNoJsonIsSaid) {
  for (const char* text : {"", "[", "]", "{]", "\"", "\"\\", "[1,]", "nul", "[1]x", "\xff"}) {
    EXPECT_THAT(parse_json(text).status().message(), HasSubstr("not JSON")) << text;
  }
}

}  // namespace
}  // namespace elixir::checkpoints
