#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "shm/runtime_folder.h"

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
  Result<std::string> request(int timeout_ms = kStatusTimeoutMs);

 private:
  const std::string endpoint_;
  std::unique_ptr<zmq::context_t> context_;  // from the first request on
};

// The folder that was named, by `runtime_dir` or ELIXIR_RUNTIME_DIR, as it is: root may look at
// another user's elixird. Else all in which an elixird of this user listens, or, where none does,
// the one where a service would. Never empty.
Result<std::vector<shm::RuntimeFolder>> folders_to_ask(const std::string& runtime_dir);

// Services before what launches have started, and of each the newest first.
void sort_answers(std::vector<std::string>* answers);

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
