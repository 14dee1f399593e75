#pragma once

// TCP between the ranks of a job: addresses, connections. No torch.

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir {

// This machine's numeric address on the route to a host; no packet is sent. On the host itself it
// is an address of its own, and where its name means 127.0.1.1, as Debian has it, loopback.
Result<std::string> route_address(const std::string& host, uint16_t port);

// The numeric address of an interface, IPv4 first.
Result<std::string> interface_address(const std::string& name);

bool is_loopback(const std::string& numeric_address);

// "address:port", "[address]:port" for IPv6.
std::string endpoint_name(const std::string& address, uint16_t port);

// A listening socket on a numeric address, not blocking; port 0: one of the system's choice.
Result<UniqueFd> listen_tcp(const std::string& address, uint16_t port = 0);
Result<uint16_t> port_of(int socket);

// Connects, trying again until it succeeds: the other side may not be there yet. After 2 s, and
// every 10 s from then on, says so in the log. kUnavailable with the last cause after timeout_s.
// `what` is what listens there; `remedy` ends the message.
Result<UniqueFd> connect_tcp(const std::string& host, uint16_t port, double timeout_s,
                             const std::string& what, const std::string& remedy);

// The other machine is given up when it has not answered for `seconds`: keepalive probes while
// nothing is sent, TCP_USER_TIMEOUT for what is. Also TCP_NODELAY.
Status set_lost_after(int socket, int seconds);

}  // namespace elixir
