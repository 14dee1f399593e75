#pragma once

// TCP between the ranks of a job: addresses, connections. No torch.

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir {

// This machine's numeric address on the route to a host; no packet is sent. If the host is this
// machine, it is one of its own addresses. If the host's name means 127.0.1.1, as on Debian, it is
// loopback.
Result<std::string> route_address(const std::string& host, uint16_t port);

// The numeric address of an interface, IPv4 first.
Result<std::string> interface_address(const std::string& name);

bool is_loopback(const std::string& numeric_address);

// "address:port", "[address]:port" for IPv6.
std::string endpoint_name(const std::string& address, uint16_t port);

// A non-blocking listening socket on a numeric address. With port 0, the system chooses one.
Result<UniqueFd> listen_tcp(const std::string& address, uint16_t port = 0);
Result<uint16_t> port_of(int socket);

// Connects, trying again until it succeeds: the other side may not be there yet. After 2 s, and
// every 10 s from then on, it says so in the log. After timeout_s it returns kUnavailable with the
// last cause. `what` names the listener; `remedy` ends the message.
Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port, double timeout_s,
                             const std::string& what, const std::string& remedy);

// Ends the connection if the other machine has not answered for `seconds`. Keepalive probes find
// this while nothing is sent, and TCP_USER_TIMEOUT otherwise. Also sets TCP_NODELAY.
Status set_lost_after(int socket, int seconds);

}  // namespace elixir
