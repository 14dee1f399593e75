#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace elixir {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kBadInput:
      return "bad_input";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kPeerLost:
      return "peer_lost";
    case Code::kVersionMismatch:
      return "version_mismatch";
    case Code::kAlreadyRunning:
      return "already_running";
    case Code::kProtocol:
      return "protocol";
    case Code::kTimedOut:
      return "timed_out";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

Status errno_status(Code code, const std::string& what) {
  const int saved = errno;
  return Status(code, what + ": " + std::strerror(saved));
}

}  // namespace elixir
