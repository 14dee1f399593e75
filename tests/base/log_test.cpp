#include "base/log.h"

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <new>
#include <string>

#include "base/fd.h"
#include "tests/support/matchers.h"

namespace elixir::test {
// Stands for a value whose text finds no memory.
struct Starved {};
}  // namespace elixir::test

template <>
struct fmt::formatter<elixir::test::Starved> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  auto format(const elixir::test::Starved&, format_context& context) const
      -> decltype(context.out()) {
    throw std::bad_alloc();
  }
};

namespace elixir {
namespace {

TEST(LogTest, OneLineAnEvent) {
  init_log("tester");
  ::testing::internal::CaptureStderr();
  log_info("attach", "session={} rank={}", 1, 0);
  log_warn("alone", "");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, MatchesRegex("[0-9-]+T[0-9:.]+Z info tester event=attach session=1 rank=0\n"
                                 "[0-9-]+T[0-9:.]+Z warning tester event=alone\n"));
}

TEST(LogTest, TheLeastLevelIsKept) {
  init_log("tester", LogLevel::kWarn);
  ::testing::internal::CaptureStderr();
  log_info("hidden", "");
  log_error("shown", "");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_NE(text.find("shown"), std::string::npos);
  init_log("tester");
}

// A name that came from a peer may hold anything, braces included.
TEST(LogTest, FieldsAreNotAFormat) {
  ::testing::internal::CaptureStderr();
  log_line(LogLevel::kInfo, "odd", "job={}{0}%s");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("job={}{0}%s"), std::string::npos);
}

// Standard error is this descriptor while it lives.
class OtherStderr {
 public:
  explicit OtherStderr(int fd) : own_(::dup(STDERR_FILENO)) { ::dup2(fd, STDERR_FILENO); }
  ~OtherStderr() {
    ::dup2(own_.get(), STDERR_FILENO);
    init_log("tester");
  }

 private:
  UniqueFd own_;
};

// Of this thread alone: it opens files as a user whom nothing belongs to, while it lives.
class AsNobody {
 public:
  AsNobody() { ::setfsuid(65534); }
  ~AsNobody() { ::setfsuid(::geteuid()); }
};

std::string all_of(int fd) {
  std::string text(1 << 22, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

// Nobody reads: more lines than the kernel holds for either.
TEST(LogTest, WhatIsNotReadIsDroppedAndCounted) {
  constexpr int kLines = 40'000;
  enum class Kind { kPipe, kPipeOfAnother, kSocket };
  for (const Kind kind : {Kind::kPipe, Kind::kPipeOfAnother, Kind::kSocket}) {
    SCOPED_TRACE(static_cast<int>(kind));
    int ends[2];
    ASSERT_EQ(kind == Kind::kSocket ? ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : ::pipe(ends),
              0);
    const UniqueFd reader(ends[0]), writer(ends[1]);
    const OtherStderr other(writer.get());
    if (kind == Kind::kPipeOfAnother) {
      ASSERT_EQ(::fchmod(writer.get(), 0), 0);
      const AsNobody nobody;  // root may open everything
      ASSERT_EQ(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC), -1);
      init_log("full", LogLevel::kInfo, /*drops=*/true);
    } else {
      init_log("full", LogLevel::kInfo, /*drops=*/true);
    }
    for (int i = 0; i < kLines; ++i) log_info("line", "number={}", i);
    const std::string before = all_of(reader.get());
    const auto read = std::count(before.begin(), before.end(), '\n');
    EXPECT_GT(read, 100);
    EXPECT_LT(read, kLines);
    EXPECT_EQ(before.back(), '\n') << "no line is cut";
    log_info("after", "");
    const std::string after = all_of(reader.get());
    EXPECT_NE(after.find(fmt::format("event=log_dropped lines={}\n", kLines - read)),
              std::string::npos)
        << after << read;
    EXPECT_NE(after.find("event=after\n"), std::string::npos) << after;
    log_info("long", "text={}", std::string(2 * PIPE_BUF, 'x'));
    log_info("next", "");
    const std::string two = all_of(reader.get());
    EXPECT_EQ(two.find('\n'), size_t{PIPE_BUF - 1}) << "a line is cut there, and ends";
    EXPECT_EQ(std::count(two.begin(), two.end(), '\n'), 2) << two;
    EXPECT_NE(two.find("event=next\n"), std::string::npos) << two;
    EXPECT_EQ(::fcntl(writer.get(), F_GETFL) & O_NONBLOCK, 0) << "others have it, too";
  }
}

TEST(LogTest, ALineWithoutMemoryIsDroppedAndCounted) {
  ::testing::internal::CaptureStderr();
  log_info("starved", "value={}", test::Starved());
  log_info("starved", "value={}", test::Starved());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  log_info("after", "");
  log_info("last", "");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("event=log_dropped lines=2\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("log_dropped", text.find("event=after")), std::string::npos) << text;
}

}  // namespace
}  // namespace elixir
