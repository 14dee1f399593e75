#include "daemon/zmtp_meter.h"

#include <gtest/gtest.h>

#include <string>

namespace elixir::daemon {
namespace {

constexpr char kLast = 0, kMore = 1, kCommand = 4;

std::string greeting(char version = 3) {
  std::string bytes(64, '\0');
  bytes[0] = '\xff';
  bytes[9] = '\x7f';
  bytes[10] = version;
  bytes.replace(12, 4, "NULL");
  return bytes;
}

std::string short_frame(char flags, size_t bytes) {
  return std::string{flags, static_cast<char>(bytes)} + std::string(bytes, 'x');
}

std::string long_frame(char flags, uint64_t bytes) {
  std::string frame{static_cast<char>(flags | 2)};
  for (int shift = 56; shift >= 0; shift -= 8) frame += static_cast<char>(bytes >> shift);
  return frame + std::string(bytes, 'x');
}

bool take(ZmtpMeter& meter, const std::string& bytes) {
  return meter.take(std::as_bytes(std::span(bytes)));
}

TEST(ZmtpMeter, TakesWhateverNumberOfBoundedMessages) {
  ZmtpMeter meter;
  ASSERT_TRUE(take(meter, greeting() + short_frame(kCommand, 40)));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(take(meter, short_frame(kMore, 0) + long_frame(kLast, kMaxZmtpMessageBytes)));
  }
}

TEST(ZmtpMeter, CutsDoNotMatter) {
  ZmtpMeter meter;
  const std::string stream = greeting() + short_frame(kMore, 5) + long_frame(kLast, 300) +
                             long_frame(kMore, kMaxZmtpMessageBytes) + short_frame(kLast, 0);
  for (const char byte : stream) ASSERT_TRUE(take(meter, std::string{byte}));
  EXPECT_TRUE(take(meter, short_frame(kLast, 48)));
  EXPECT_FALSE(take(meter, long_frame(kMore, kMaxZmtpMessageBytes) + short_frame(kLast, 1)));
}

TEST(ZmtpMeter, AMessageThatNeverEndsIsRefusedByItsBytes) {
  ZmtpMeter meter;
  ASSERT_TRUE(take(meter, greeting()));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(take(meter, long_frame(kMore, 1024)));
  EXPECT_FALSE(take(meter, short_frame(kMore, 1)));
  EXPECT_FALSE(take(meter, short_frame(kLast, 0)));  // once refused, for good
}

TEST(ZmtpMeter, AndByItsFrames) {
  ZmtpMeter meter;
  ASSERT_TRUE(take(meter, greeting()));
  for (uint32_t i = 0; i < kMaxZmtpFrames; ++i) ASSERT_TRUE(take(meter, short_frame(kMore, 0)));
  EXPECT_FALSE(take(meter, short_frame(kLast, 0)));
}

TEST(ZmtpMeter, ALengthIsRefusedBeforeItsBodyCame) {
  for (const uint64_t bytes : {kMaxZmtpMessageBytes + 1, uint64_t{1} << 63, UINT64_MAX}) {
    ZmtpMeter meter;
    std::string frame{char{2}};
    for (int shift = 56; shift >= 0; shift -= 8) frame += static_cast<char>(bytes >> shift);
    EXPECT_FALSE(take(meter, greeting() + frame)) << bytes;
  }
}

TEST(ZmtpMeter, OnlyVersion3IsSpoken) {
  for (const char version : {0, 1, 2}) {
    ZmtpMeter meter;
    EXPECT_FALSE(take(meter, greeting(version))) << int{version};
  }
  ZmtpMeter unversioned, http;
  EXPECT_FALSE(take(unversioned, std::string("\x01\x00", 2)));
  EXPECT_FALSE(take(http, "GET / HTTP/1.1\r\n"));
}

}  // namespace
}  // namespace elixir::daemon
