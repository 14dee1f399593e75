#include "models/token_text.h"

#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(TokenText, Utf8StaysAndOtherBytesAreVisible) {
  EXPECT_EQ(visible_text("def f(x):\n\treturn \"x\" \\"), "def f(x):\n\treturn \"x\" \\");
  EXPECT_EQ(visible_text("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(visible_text("\x1b[2J\x07\r\x7f"), "\\x1b[2J\\x07\\x0d\\x7f");
  EXPECT_EQ(visible_text(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(visible_text("\xc2\x9b"
                         "2J"),
            "\\xc2\\x9b2J");  // U+009B, a terminal's escape
}

// Cut off, too long, surrogates, beyond U+10FFFF.
TEST(TokenText, WhatIsNoUtf8IsToldByteByByte) {
  EXPECT_EQ(visible_text("\xc3"), "\\xc3");
  EXPECT_EQ(visible_text("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(visible_text("\xe2\x82x"), "\\xe2\\x82x");
  EXPECT_EQ(visible_text("\xc0\xaf"), "\\xc0\\xaf");
  EXPECT_EQ(visible_text("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
  EXPECT_EQ(visible_text("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(visible_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(visible_text("\xff\x80"), "\\xff\\x80");
}

TEST(TokenText, QuotedIsOneLine) {
  EXPECT_EQ(quoted_text("a\n\tb \"c\" \\d\r"), R"("a\n\tb \"c\" \\d\x0d")");
  EXPECT_EQ(quoted_text(""), "\"\"");
}

TEST(TokenText, TokensAreBytesOrNumbers) {
  const std::vector<int64_t> tokens = tokens_of_text("h\xff");
  EXPECT_THAT(tokens, ElementsAre(104, 255));
  EXPECT_EQ(shown_tokens(tokens, 256, /*quoted=*/true), "\"h\\xff\"");
  EXPECT_EQ(shown_tokens(tokens, 256, /*quoted=*/false), "h\\xff");
  EXPECT_EQ(shown_tokens(tokens, 50257, /*quoted=*/true), "104,255");
}

TEST(TokenText, ListsAreReadAsTheyAreWritten) {
  EXPECT_THAT(*parse_tokens("1,22,0", 23), ElementsAre(1, 22, 0));
  for (const char* bad : {"", "1,", ",1", "1 2", "-1", "23", "x", "1,2x", "99999999999999999999"}) {
    SCOPED_TRACE(bad);
    expect_refused(parse_tokens(bad, 23).status(), Code::kInvalidArgument, {"from 0 to 22"});
  }
}

}  // namespace
}  // namespace elixir
