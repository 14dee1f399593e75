#include "client/ranks/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "client/ranks/member.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(TcpTest, ConnectsToWhatListens) {
  const UniqueFd listener = must(listen_tcp("127.0.0.1"));
  const uint16_t port = must(port_of(listener.get()));
  const UniqueFd socket = must(connect_tcp("localhost", port, 60, "a test", ""));
  ASSERT_TRUE(set_lost_after(socket.get(), 20).ok());
  unsigned limit_ms = 0;
  socklen_t length = sizeof limit_ms;
  ::getsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &length);
  EXPECT_EQ(limit_ms, 20000u);
}

TEST(TcpTest, WhatCannotBeReachedIsNamedWithCauseAndRemedy) {
  uint16_t port = 0;
  {
    const Result<UniqueFd> listener = listen_tcp("127.0.0.1");
    port = *port_of(listener->get());
  }
  const Status refused = connect_tcp("127.0.0.1", port, 0.3, "rank 0", "start it").status();
  expect_refused(
      refused, Code::kUnavailable,
      {"rank 0 at 127.0.0.1:" + std::to_string(port), "within 0", "refused", "start it"});
  const Status unknown = connect_tcp("no.such.host.invalid", 1, 0.1, "rank 0", "").status();
  EXPECT_THAT(unknown.message(), HasSubstr("'no.such.host.invalid'"));
}

TEST(TcpTest, AddressesOfThisMachine) {
  EXPECT_EQ(*route_address("127.0.0.1", 1), "127.0.0.1");
  EXPECT_TRUE(is_loopback(*route_address("localhost", 1)));
  EXPECT_EQ(*interface_address("lo"), "127.0.0.1");
  EXPECT_THAT(interface_address("nope0").status().message(),
              AllOf(HasSubstr("'nope0'"), HasSubstr("lo")));
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
  EXPECT_EQ(endpoint_name("10.0.0.1", 5), "10.0.0.1:5");
  EXPECT_EQ(endpoint_name("fe80::1", 5), "[fe80::1]:5");
}

TEST(MemberTest, ComesBackAndRubbishIsRefused) {
  const Member member{3, 77, "node-b", "GPU-1234"};
  const Member back = must(decode_member(encode_member(member)));
  EXPECT_EQ(back.rank, 3u);
  EXPECT_EQ(back.pid, 77u);
  EXPECT_EQ(back.host, "node-b");
  EXPECT_EQ(back.gpu_uuid, "GPU-1234");
  EXPECT_EQ(back.name(), "rank 3 (pid 77 on node-b)");
  for (const std::string& bad : {std::string(), std::string("1\t2\t3"), std::string("x\t2\th\tg"),
                                 std::string("1\t-2\th\tg"), std::string("1\t2\th\tg\ty"),
                                 "1\t2\th\t" + std::string(2000, 'g')}) {
    EXPECT_EQ(decode_member(bad).status().code(), Code::kProtocol) << bad;
  }
}

TEST(MemberTest, TwoRanksOnOneGpuAreRefusedByName) {
  std::vector<Member> members = {{0, 10, "a", "GPU-1"},
                                 {1, 11, "a", "GPU-2"},
                                 {2, 12, "b", "GPU-3"},
                                 {3, 13, "b", ""},
                                 {4, 14, "b", ""}};
  EXPECT_TRUE(refuse_shared_gpus(members).ok());
  members[2].gpu_uuid = "GPU-2";  // another host name, as in two containers of one machine
  const Status status = refuse_shared_gpus(members);
  expect_refused(status, Code::kInvalidArgument,
                 {"rank 1 (pid 11 on a)", "rank 2 (pid 12 on b)", "GPU-2", "--exchange host"});
}

}  // namespace
}  // namespace elixir
