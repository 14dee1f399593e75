#pragma once

// Why no elixird answers at its status socket.

#include <string>

#include "base/status.h"

namespace elixir::ctl {

struct Unanswered {
  // kUnavailable: nobody listens. kTimedOut: somebody listens and does not answer.
  // kResourceExhausted: somebody listens and closes new connections. kInvalidArgument: this user
  // may not connect.
  Code code = Code::kUnavailable;
  std::string what;    // names the process that listens
  std::string remedy;  // what to do, or where to look

  Status status() const { return error(code, "{}: {}", what, remedy); }
};

// `socket`: its path. Connects, and looks for at most `look_ms` at what becomes of the connection.
// `waited_ms`: how long somebody has waited for an answer.
Unanswered why_unanswered(const std::string& socket, int waited_ms, int look_ms = 500);

}  // namespace elixir::ctl
