#include "base/status.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>

#include "base/fd.h"

namespace elixir {
namespace {

TEST(StatusTest, CodesAreExitCodesWithNames) {
  std::set<std::string> names;
  for (Code code :
       {Code::kOk, Code::kInvalidArgument, Code::kResourceExhausted, Code::kBadInput,
        Code::kUnavailable, Code::kPeerLost, Code::kVersionMismatch, Code::kAlreadyRunning,
        Code::kProtocol, Code::kTimedOut, Code::kDiverged, Code::kInternal}) {
    names.insert(code_name(code));
  }
  EXPECT_EQ(names.size(), 12u);
  EXPECT_EQ(error(Code::kBadInput, "x").exit_code(), 4);
}

TEST(StatusTest, CarriesItsMessage) {
  const Status status = error(Code::kTimedOut, "{} of {}", 1, 2);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "1 of 2");
  EXPECT_TRUE(Status().ok());
}

TEST(StatusTest, ErrnoIsNamed) {
  errno = ENOENT;
  const Status status = errno_status(Code::kInternal, "open x");
  EXPECT_EQ(status.message(), "open x: No such file or directory");
}

TEST(StatusTest, WhatLacksIsNobodysFault) {
  for (const Code code : {Code::kInternal, Code::kBadInput, Code::kInvalidArgument}) {
    for (const int lack : {EMFILE, ENFILE, ENOMEM}) {
      errno = lack;
      EXPECT_EQ(errno_status(code, "open x").code(), Code::kResourceExhausted) << lack;
    }
    errno = EACCES;
    EXPECT_EQ(errno_status(code, "open x").code(), code);
  }
  errno = EMFILE;
  EXPECT_EQ(errno_status(Code::kUnavailable, "connect").code(), Code::kUnavailable);
}

Status fails_when(bool condition) {
  ELIXIR_RETURN_IF_ERROR(condition ? error(Code::kInternal, "did") : Status());
  return error(Code::kBadInput, "went on");
}

TEST(StatusTest, ReturnIfErrorReturnsOnlyThen) {
  EXPECT_EQ(fails_when(true).message(), "did");
  EXPECT_EQ(fails_when(false).message(), "went on");
}

TEST(ResultTest, HoldsAValueOrAStatus) {
  Result<std::unique_ptr<int>> good = std::make_unique<int>(3);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good.status().ok());
  EXPECT_EQ(**good, 3);
  const Result<int> bad = error(Code::kProtocol, "no");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kProtocol);
}

TEST(ResultDeathTest, AnOkStatusIsNoValue) {
  EXPECT_DEATH((void)Result<int>(Status()), "bug in Elixir");
}

TEST(UniqueFdTest, OwnsExactlyOnce) {
  int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first.valid());  // NOLINT: what a moved-from descriptor is, is the test
    EXPECT_EQ(second.get(), raw);
    second = UniqueFd(second.release());
    EXPECT_EQ(second.get(), raw);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
}

}  // namespace
}  // namespace elixir
