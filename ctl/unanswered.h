#pragma once

// Finds out why no elixird answers at its status socket.

#include <string>

#include "base/status.h"

namespace elixir::ctl {

struct Unanswered {
  // kUnavailable: no process listens. kTimedOut: a process listens and does not answer.
  // kResourceExhausted: a process listens and closes new connections. kInvalidArgument: this user
  // may not connect.
  Code code = Code::kUnavailable;
  std::string what;    // the cause; names the process that listens
  std::string remedy;  // the next thing to do or to look at

  Status status() const { return error(code, "{}: {}", what, remedy); }
};

// `socket`: its path. Connects and watches the connection for at most `look_ms`. `waited_ms`: how
// long the caller has already waited for an answer.
Unanswered why_unanswered(const std::string& socket, int waited_ms, int look_ms = 500);

}  // namespace elixir::ctl
