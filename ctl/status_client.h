#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace zmq {
class context_t;
}

namespace elixir::ctl {

inline constexpr int kStatusTimeoutMs = 2000;

// Asks an elixird how it is. Each request is a connection of its own, so that a daemon may come
// and go between two of them. Not thread-safe.
class StatusClient {
 public:
  // `endpoint` as RuntimeFolder::status_endpoint() gives it.
  explicit StatusClient(std::string endpoint);
  ~StatusClient();

  // The daemon's answer: a JSON object, checked to be one. When there is none within `timeout_ms`,
  // as why_unanswered() has it; kProtocol when it is something else.
  Result<std::string> request(int timeout_ms = kStatusTimeoutMs) const;

 private:
  const std::string endpoint_;
  const std::unique_ptr<zmq::context_t> context_;
};

// kVersionMismatch: the answer is that of an elixird of another version than this program's. What
// it has in common with one of this version can be shown all the same, unless it is no status at
// all.
struct AnswerVersion {
  bool is_status = false;
  Status status;
};
AnswerVersion version_of(std::string_view answer);

// The name of each job of an answer; "" where it has none.
std::vector<std::string> job_names(std::string_view answer);

}  // namespace elixir::ctl
