#include "tests/support/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <mutex>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/fd.h"

namespace elixir::test {

uint16_t unused_port() {
  static std::mutex mutex;
  static std::vector<UniqueFd> held;
  std::random_device random;
  for (;;) {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // Below those that Linux gives to connections (net.ipv4.ip_local_port_range, from 32768 on).
    const auto port = static_cast<uint16_t>(20000 + random() % 12000);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
    const int on = 1;  // not before: another's held port would be had then
    ELIXIR_CHECK(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "");
    const std::scoped_lock lock(mutex);
    held.push_back(std::move(socket));
    return port;
  }
}

}  // namespace elixir::test
