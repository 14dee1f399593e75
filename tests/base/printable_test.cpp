#include "base/printable.h"

#include <gtest/gtest.h>

namespace elixir {
namespace {

TEST(PrintableTest, WhatATerminalObeysIsNotShown) {
  EXPECT_EQ(printable("\x1b]0;title\x07\x1b[2J\r\n\t\x7f"), "?]0;title??[2J????");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m \xc2\x80 \xc2\x9f"),
            "?31m ? ?")
      << "U+009B begins a sequence, too";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "?31m")
      << "on a terminal of eight bits";
}

TEST(PrintableTest, TextStays) {
  const std::string text =
      "a gr\xc3\xb6\xc3\x9f"
      "e \xc2\xa0 \xe2\x82\xac \xf0\x9f\x98\x80";
  EXPECT_EQ(printable(text), text) << "bytes of longer characters are no controls";
  EXPECT_EQ(printable("latin \xf6, cut \xe2"), "latin \xf6, cut \xe2");
  EXPECT_EQ(printable("one\ntwo\x1b", /*lines=*/true), "one\ntwo?");
  EXPECT_EQ(printable(""), "");
}

}  // namespace
}  // namespace elixir
