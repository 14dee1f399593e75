#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace elixir {

namespace {

constexpr struct {
  Code code;
  const char* name;
} kNames[] = {{Code::kOk, "ok"},
              {Code::kInvalidArgument, "invalid_argument"},
              {Code::kResourceExhausted, "resource_exhausted"},
              {Code::kBadInput, "bad_input"},
              {Code::kUnavailable, "unavailable"},
              {Code::kPeerLost, "peer_lost"},
              {Code::kVersionMismatch, "version_mismatch"},
              {Code::kAlreadyRunning, "already_running"},
              {Code::kProtocol, "protocol"},
              {Code::kTimedOut, "timed_out"},
              {Code::kDiverged, "diverged"},
              {Code::kInternal, "internal"}};

}  // namespace

const char* code_name(Code code) {
  for (const auto& known : kNames) {
    if (known.code == code) return known.name;
  }
  return "unknown";
}

Error::Error(const Status& status) : std::runtime_error(status.message()), code_(status.code()) {}
Error::~Error() = default;

Status no_memory_left() noexcept {
  static constexpr char kText[] = "no memory left";
  static_assert(sizeof kText <= 16, "libstdc++ keeps so many bytes in the string itself");
  return Status(Code::kResourceExhausted, kText);
}

Status errno_status(Code code, const std::string& what) {
  const int saved = errno;
  const bool no_descriptor = saved == EMFILE || saved == ENFILE;
  // Then neither the program nor what it was given is wrong.
  const bool blames =
      code == Code::kInternal || code == Code::kBadInput || code == Code::kInvalidArgument;
  if (blames && (no_descriptor || saved == ENOMEM)) code = Code::kResourceExhausted;
  const char* const remedy =
      no_descriptor ? ": raise the limit of descriptors (ulimit -n, LimitNOFILE= in the unit)" : "";
  return Status(code, what + ": " + std::strerror(saved) + remedy);
}

}  // namespace elixir
