#include "launcher/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "base/fd.h"

namespace elixir::launcher {
namespace {

std::string prefixed(std::initializer_list<std::string_view> pieces) {
  LinePrefixer prefixer("[r] ");
  std::string out;
  for (std::string_view piece : pieces) prefixer.feed(piece, &out);
  prefixer.finish(&out);
  return out;
}

TEST(LinePrefixerTest, EveryLineGetsThePrefix) {
  EXPECT_EQ(prefixed({"a\nb\n"}), "[r] a\n[r] b\n");
  EXPECT_EQ(prefixed({"\n\n"}), "[r] \n[r] \n");
  EXPECT_EQ(prefixed({}), "");
}

TEST(LinePrefixerTest, PiecesOfALineAreJoined) {
  EXPECT_EQ(prefixed({"a", "b", "c\nd", "\n"}), "[r] abc\n[r] d\n");
}

TEST(LinePrefixerTest, NothingOfAnUnfinishedLineIsShown) {
  LinePrefixer prefixer("[r] ");
  std::string out;
  prefixer.feed("half", &out);
  EXPECT_EQ(out, "");
  prefixer.finish(&out);
  EXPECT_EQ(out, "[r] half\n");
  prefixer.finish(&out);
  EXPECT_EQ(out, "[r] half\n");
}

TEST(LinePrefixerTest, ProgressBarsAreLinesThatEndWithReturn) {
  EXPECT_EQ(prefixed({"10%\r20%\r\n"}), "[r] 10%\r[r] 20%\r\n");
  EXPECT_EQ(prefixed({"\r10%", "\r20%"}), "[r] 10%\r[r] 20%\n");
}

TEST(LinePrefixerTest, ReturnAndNewlineAreOneEndAlsoWhenTornApart) {
  EXPECT_EQ(prefixed({"a\r\nb"}), "[r] a\r\n[r] b\n");
  EXPECT_EQ(prefixed({"a\r", "\nb"}), "[r] a\r\n[r] b\n");
}

TEST(LinePrefixerTest, AnEndlessLineIsCut) {
  const std::string part(1000, 'x');
  LinePrefixer prefixer("");
  std::string out;
  for (size_t i = 0; i < 3 * LinePrefixer::kMaxLineBytes / part.size(); ++i) {
    prefixer.feed(part, &out);
  }
  EXPECT_GE(out.size(), 2 * LinePrefixer::kMaxLineBytes);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  UniqueFd read_end, write_end;
};

TEST(OutputStreamTest, NeverWaitsForASlowReaderAndLosesNothing) {
  Pipe pipe;
  OutputStream stream(pipe.write_end.get());
  std::string sent, got;
  for (int i = 0; i < 40000; ++i) sent += std::to_string(i) + "\n";
  *stream.buffer() = sent;
  stream.flush();  // would wait for ever in a plain write: the pipe holds 64 KiB
  EXPECT_FALSE(stream.empty());
  char bytes[5000];
  while (got.size() < sent.size()) {
    const ssize_t count = ::read(pipe.read_end.get(), bytes, sizeof bytes);
    ASSERT_GT(count, 0);
    got.append(bytes, static_cast<size_t>(count));
    stream.flush();
  }
  EXPECT_TRUE(stream.empty());
  EXPECT_EQ(got, sent);
}

TEST(OutputStreamTest, AReaderThatWentAwayIsNoticed) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  OutputStream stream(pipe.write_end.get());
  stream.buffer()->append("text");
  pipe.read_end.reset();
  EXPECT_FALSE(stream.broken());
  stream.flush();
  EXPECT_TRUE(stream.broken());
  EXPECT_TRUE(stream.empty());
  ::signal(SIGPIPE, SIG_DFL);
}

// As a terminal that has ended: ranks that write there themselves go on, too.
TEST(OutputStreamTest, WhatAFullDiskDoesNotTakeIsDroppedAndTold) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  OutputStream stream(full.get());
  stream.buffer()->append("text");
  stream.flush();
  EXPECT_EQ(stream.lost(), ENOSPC);
  EXPECT_FALSE(stream.broken()) << "ranks go on";
  EXPECT_TRUE(stream.empty());
}

}  // namespace
}  // namespace elixir::launcher
