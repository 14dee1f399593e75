#include "client/ranks/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/log.h"

namespace elixir {
namespace {

constexpr double kOneTryS = 5;
constexpr useconds_t kBetweenTriesMicroseconds = 100'000;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// kUnavailable: a name that cannot be resolved now may be later.
Result<Addresses> resolve(const std::string& host, uint16_t port, int type, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failure != 0) {
    return error(Code::kUnavailable, "the name '{}': {}", host, ::gai_strerror(failure));
  }
  return Addresses(list);
}

std::string numeric_name(const sockaddr* address, socklen_t length) {
  char name[NI_MAXHOST] = "";
  ::getnameinfo(address, length, name, sizeof name, nullptr, 0, NI_NUMERICHOST);
  return name;
}

// 0, or the errno of the failure.
int finish_connect(int socket, double timeout_s) {
  pollfd entry{socket, POLLOUT, 0};
  if (::poll(&entry, 1, std::max(1, static_cast<int>(timeout_s * 1000))) <= 0) return ETIMEDOUT;
  int failure = 0;
  socklen_t length = sizeof failure;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &failure, &length);
  return failure;
}

// On loopback, a connection to an ephemeral port that nobody listens on may get that very port as
// its own, and then is connected with itself.
bool with_itself(int socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length);
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_length);
  return own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

Result<UniqueFd> connect_once(const std::string& host, uint16_t port, double timeout_s) {
  Result<Addresses> addresses = resolve(host, port, SOCK_STREAM, 0);
  if (!addresses.ok()) return addresses.status();
  int failure = EADDRNOTAVAIL;
  for (const addrinfo* entry = addresses->get(); entry != nullptr; entry = entry->ai_next) {
    UniqueFd socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) continue;
    failure = ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 ? 0 : errno;
    if (failure == EINPROGRESS) failure = finish_connect(socket.get(), timeout_s);
    if (failure == 0 && with_itself(socket.get())) failure = ECONNREFUSED;
    if (failure == 0) return socket;
  }
  return Status(Code::kUnavailable, std::strerror(failure));
}

}  // namespace

Result<std::string> route_address(const std::string& host, uint16_t port) {
  Result<Addresses> addresses = resolve(host, port, SOCK_DGRAM, 0);
  if (!addresses.ok()) return addresses.status();
  int failure = EADDRNOTAVAIL;
  for (const addrinfo* entry = addresses->get(); entry != nullptr; entry = entry->ai_next) {
    const UniqueFd socket(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    auto* generic = reinterpret_cast<sockaddr*>(&own);
    if (socket.valid() && ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), generic, &length) == 0) {
      return numeric_name(generic, length);
    }
    failure = errno;
  }
  return error(Code::kUnavailable, "no route to {}: {}", endpoint_name(host, port),
               std::strerror(failure));
}

Result<std::string> interface_address(const std::string& name) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return errno_status(Code::kInternal, "getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::string known;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if (name == entry->ifa_name) {
        return numeric_name(entry->ifa_addr,
                            family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      }
      known += std::string(known.empty() ? "" : ", ") + entry->ifa_name;
    }
  }
  return error(Code::kInvalidArgument,
               "this machine has no network interface '{}' with an address; it has: {}", name,
               known);
}

bool is_loopback(const std::string& numeric_address) {
  return numeric_address.starts_with("127.") || numeric_address == "::1";
}

std::string endpoint_name(const std::string& address, uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", address, v6 ? "]" : "", port);
}

Result<UniqueFd> listen_tcp(const std::string& address, uint16_t port) {
  Result<Addresses> addresses = resolve(address, port, SOCK_STREAM, AI_NUMERICHOST);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& entry = **addresses;
  UniqueFd socket(::socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;  // over connections of a former start that linger
  if (!socket.valid() ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(socket.get(), entry.ai_addr, entry.ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return errno_status(Code::kUnavailable, "cannot listen on " + endpoint_name(address, port));
  }
  return socket;
}

Result<uint16_t> port_of(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return errno_status(Code::kInternal, "getsockname");
  }
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(own).sin_port);
}

Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port, double timeout_s,
                             const std::string& what, const std::string& remedy) {
  const int64_t start_ns = monotonic_ns();
  WaitNotes notes;
  for (;;) {
    const double left_s = timeout_s - seconds_since(start_ns);
    Result<UniqueFd> socket = connect_once(host, port, std::clamp(left_s, 0.001, kOneTryS));
    if (socket.ok()) return socket;
    const double waited_s = seconds_since(start_ns);
    const std::string cause = socket.status().message();
    if (waited_s >= timeout_s) {
      return error(Code::kUnavailable, "cannot connect to {} at {} within {:.0f} s: {}; {}", what,
                   endpoint_name(host, port), timeout_s, cause, remedy);
    }
    if (notes.due(waited_s)) {
      log_info("connecting", "to=\"{}\" at={} waited_s={:.0f} limit_s={:.0f} cause=\"{}\"", what,
               endpoint_name(host, port), waited_s, timeout_s, cause);
    }
    ::usleep(kBetweenTriesMicroseconds);
  }
}

Status set_lost_after(int socket, int seconds) {
  // First probe after a quarter of the time, then every tenth of it: the kernel gives up at the
  // first probe at which TCP_USER_TIMEOUT has passed without an answer.
  const int on = 1, idle_s = std::max(1, seconds / 4), interval_s = std::max(1, seconds / 10);
  const int probes = 2 * seconds / interval_s;
  const unsigned limit_ms = static_cast<unsigned>(seconds) * 1000;
  const auto set = [socket](int level, int option, const void* value, socklen_t length) {
    return ::setsockopt(socket, level, option, value, length) == 0;
  };
  if (!set(SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) ||
      !set(IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) ||
      !set(IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s) ||
      !set(IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes) ||
      !set(IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms) ||
      !set(IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) {
    return errno_status(Code::kInternal, "setsockopt for keepalive");
  }
  return Status();
}

}  // namespace elixir
