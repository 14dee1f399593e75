#include "shm/attach_socket.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "shm/messages.h"
#include "shm/peer_bytes.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::shm {
namespace {

class AttachSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = must(listen_attach(path()));
    client_ = must(connect_attach(path()));
    server_ = must(accept_attach(listener_.get()));
  }
  std::string path() const { return folder_.path() + "/attach.sock"; }

  TemporaryFolder folder_;
  UniqueFd listener_, client_, server_;
};

size_t open_descriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

ino_t inode_of(int fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd, &info), 0);
  return info.st_ino;
}

TEST_F(AttachSocketTest, CarriesMessagesWithDescriptors) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd first(ends[0]), second(ends[1]);
  AttachRequest request{};
  request.position.rank = 5;
  ASSERT_TRUE(
      send_message(client_.get(), request, std::vector<int>{first.get(), second.get()}).ok());
  const Packet packet = must(receive_packet(server_.get(), 1000));
  const AttachRequest decoded = must(decode_message<AttachRequest>(packet.bytes));
  EXPECT_EQ(decoded.position.rank, 5u);
  ASSERT_EQ(packet.fds.size(), 2u);
  EXPECT_EQ(inode_of(packet.fds[0].get()), inode_of(first.get()));
  EXPECT_NE(::fcntl(packet.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(AttachSocketTest, KnowsThePeer) {
  const PeerCredentials peer = must(peer_credentials(server_.get()));
  EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_EQ(peer.uid, ::getuid());
}

TEST_F(AttachSocketTest, OnlyItsUserMayConnect) {
  struct stat info {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AttachSocketTest, DeathIsEndOfFileAfterWhatWasSent) {
  ASSERT_TRUE(send_message(client_.get(), Detach{}).ok());
  client_.reset();
  const Packet last = must(receive_packet(server_.get(), 1000));
  EXPECT_FALSE(last.end_of_file());
  const Packet end = must(receive_packet(server_.get(), 1000));
  EXPECT_TRUE(end.end_of_file());
  EXPECT_EQ(send_message(server_.get(), Detach{}).code(), Code::kUnavailable) << "or SIGPIPE";
}

TEST_F(AttachSocketTest, NothingYetIsTimedOut) {
  EXPECT_EQ(receive_packet(server_.get(), 0).status().code(), Code::kTimedOut);
  EXPECT_EQ(receive_packet(server_.get(), 20).status().code(), Code::kTimedOut);
}

TEST_F(AttachSocketTest, APeerThatDoesNotReadIsTimedOut) {
  const std::vector<std::byte> bytes(16 * 1024);
  Status status;
  for (int i = 0; i < 10000 && status.ok(); ++i) {
    status = send_packet(client_.get(), bytes, {}, 20);
  }
  EXPECT_EQ(status.code(), Code::kTimedOut);
}

TEST_F(AttachSocketTest, TheLargestPacketFitsAndOneByteMoreDoesNot) {
  std::vector<std::byte> bytes(kMaxMessageBytes);
  ASSERT_TRUE(send_packet(client_.get(), bytes, {}, 1000).ok());
  const Packet packet = must(receive_packet(server_.get(), 1000));
  EXPECT_EQ(packet.bytes.size(), kMaxMessageBytes);

  bytes.push_back(std::byte{1});  // which our own sender would not send
  ASSERT_EQ(::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(receive_packet(server_.get(), 1000).status().code(), Code::kProtocol);
}

// A peer may send more descriptors than our own sender would: refused, and none is kept.
TEST_F(AttachSocketTest, TooManyDescriptorsAreRefusedAndClosed) {
  constexpr size_t kCount = kMaxFds + 8;  // Linux sends 253 at most
  std::vector<int> fds(kCount, client_.get());
  char byte = 1;
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int) * kCount)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int) * kCount);
  std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * kCount);
  ASSERT_EQ(::sendmsg(client_.get(), &message, 0), 1);
  const size_t before = open_descriptors();
  EXPECT_EQ(receive_packet(server_.get(), 1000).status().code(), Code::kProtocol);
  EXPECT_EQ(open_descriptors(), before);
}

// Or one packet would hold whoever reads it, for as long as its sender wishes.
TEST_F(AttachSocketTest, AReceivedSocketIsClosedWithoutWaiting) {
  test::LingeringSocket socket;
  ASSERT_TRUE(test::lingers(socket.fd()));
  ASSERT_TRUE(socket.send_away(client_.get(), "x"));
  Packet packet = must(receive_packet(server_.get(), 1000));
  ASSERT_EQ(packet.fds.size(), 1u);
  EXPECT_FALSE(test::lingers(packet.fds[0].get()));
  socket.release();
}

TEST_F(AttachSocketTest, AnEmptiedConnectionIsClosedWithoutWaiting) {
  std::vector<test::LingeringSocket> sockets(2);
  ASSERT_TRUE(sockets[0].send_away(client_.get(), "x"));
  ASSERT_EQ(::send(client_.get(), "", 0, MSG_NOSIGNAL), 0);  // looks like an end, and is none
  ASSERT_TRUE(sockets[1].send_away(client_.get(), "x"));
  EXPECT_TRUE(test::returns(sockets, [&] {
    empty_connection(server_.get());
    server_.reset();
  }));
  EXPECT_EQ(::send(client_.get(), "x", 1, MSG_NOSIGNAL), -1);
}

TEST_F(AttachSocketTest, AnEmptiedListenerIsClosedWithoutWaiting) {
  std::vector<test::LingeringSocket> sockets(1);
  const UniqueFd waiting = must(connect_attach(path()));
  ASSERT_TRUE(sockets[0].send_away(waiting.get(), "x"));
  EXPECT_TRUE(test::returns(sockets, [&] {
    empty_listener(listener_.get());
    listener_.reset();
  }));
}

// The kernel cuts off what does not fit: that is no packet that is too large.
TEST_F(AttachSocketTest, AReceiverAtItsLimitOfDescriptorsIsTold) {
  const int fds[] = {client_.get(), client_.get()};
  const std::vector<std::byte> bytes(8);
  ASSERT_TRUE(send_packet(client_.get(), bytes, fds, 1000).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next_free(::dup(server_.get()));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next_free.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = receive_packet(server_.get(), 1000).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  expect_refused(status, Code::kResourceExhausted, {"ulimit -n"});
}

TEST_F(AttachSocketTest, AStaleFileIsReplaced) {
  listener_.reset();
  EXPECT_EQ(connect_attach(path()).status().code(), Code::kUnavailable);
  ASSERT_TRUE(std::filesystem::exists(path()));
  const UniqueFd again = must(listen_attach(path()));
  EXPECT_TRUE(connect_attach(path()).ok());
}

// As elixird when it is stopped, or hangs: there is one, and nobody waits for it for ever.
TEST(AttachSocketBacklogTest, WhoAcceptsNobodyListensAndIsSaidNotToAnswer) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/attach.sock";
  EXPECT_FALSE(somebody_listens(path));
  const UniqueFd listener = must(listen_attach(path));
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  std::vector<UniqueFd> waiting;
  Status status;
  std::atomic<bool> refused{false};
  std::thread trainers([&] {
    for (int i = 0; i < 8 && status.ok(); ++i) {
      Result<UniqueFd> socket = connect_attach(path, 50);
      status = socket.status();
      if (socket.ok()) waiting.push_back(std::move(*socket));
    }
    refused = true;
  });
  const bool in_time = test::eventually([&] { return refused.load(); });
  EXPECT_TRUE(in_time);
  if (!in_time) ::shutdown(listener.get(), SHUT_RDWR);  // who waits in connect() is refused
  trainers.join();
  expect_refused(status, Code::kTimedOut, {"does not answer"});
  EXPECT_TRUE(somebody_listens(path));

  ASSERT_TRUE(accept_attach(listener.get()).ok());
  const UniqueFd socket = must(connect_attach(path));
  EXPECT_EQ(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(AttachSocketPathTest, ATooLongPathIsExplained) {
  const Status status = listen_attach("/tmp/" + std::string(200, 'x')).status();
  expect_refused(status, Code::kInvalidArgument, {"ELIXIR_RUNTIME_DIR"});
  EXPECT_EQ(connect_attach("/nonexistent/socket").status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace elixir::shm
