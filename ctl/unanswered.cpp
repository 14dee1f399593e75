#include "ctl/unanswered.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/fd.h"
#include "base/process_stat.h"
#include "shm/attach_socket.h"

namespace elixir::ctl {
namespace {

// Whether the other side closes the connection within the time.
bool is_closed(int socket, int look_ms) {
  pollfd entry{socket, POLLIN, 0};
  if (::poll(&entry, 1, look_ms) <= 0) return false;
  char byte = 0;
  const ssize_t got = ::recv(socket, &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

Unanswered not_connected(const std::string& socket, int failure) {
  switch (failure) {
    case EAGAIN:
      return {Code::kTimedOut,
              fmt::format("an elixird listens at {}, but it does not accept connections", socket),
              "it is stopped or hangs; its pid stands in elixird.lock in that folder: 'kill -CONT' "
              "resumes it, and 'kill -KILL' ends it with all of its jobs"};
    case EACCES:
    case EPERM:
      return {Code::kInvalidArgument, fmt::format("{} is not this user's", socket),
              "ask as the user who runs this elixird, or as root"};
    default:
      return {Code::kUnavailable,
              fmt::format("no elixird answers at {} ({})", socket, std::strerror(failure)),
              "start one with elixir-run, or with systemctl --user start elixird, or name the "
              "folder of another with --runtime-dir"};
  }
}

}  // namespace

Unanswered why_unanswered(const std::string& socket, int waited_ms, int look_ms) {
  const Result<UniqueFd> connection = shm::connect_now(socket, SOCK_STREAM);
  if (!connection.ok()) return not_connected(socket, errno);
  const Result<shm::PeerCredentials> peer = shm::peer_credentials(connection->get());
  const pid_t pid = peer.ok() ? peer->pid : 0;
  const std::string who =
      fmt::format("the elixird at {} ({})", socket,
                  pid > 0 ? fmt::format("pid {}", pid) : "a process of another container");
  const std::optional<ProcessStat> stat = pid > 0 ? process_stat(pid) : std::nullopt;
  if (stat && (stat->state() == 'T' || stat->state() == 't')) {
    const bool debugged = stat->state() == 't';  // a debugger holds it
    return {Code::kTimedOut, fmt::format("{} is stopped{}", who, debugged ? " by a debugger" : ""),
            debugged ? "let it resume there" : fmt::format("'kill -CONT {}' resumes it", pid)};
  }
  if (is_closed(connection->get(), look_ms)) {
    return {Code::kResourceExhausted,
            fmt::format("{} closes new connections: too many programs are connected to it", who),
            "try again in some seconds, or end such programs ('ss -xp' lists them); its log has a "
            "line event=connections_closed"};
  }
  return {Code::kTimedOut, fmt::format("{} has not answered for {} ms", who, waited_ms),
          "it is busy or hangs: try again, and look at its log (elixird.log in that folder, or "
          "journalctl)"};
}

}  // namespace elixir::ctl
