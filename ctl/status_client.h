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

// Asks an elixird for its status. Each request opens its own connection, so a daemon may stop and
// start between two requests. Not thread-safe.
class StatusClient {
 public:
  // `endpoint` as RuntimeFolder::status_endpoint() gives it.
  explicit StatusClient(std::string endpoint);
  ~StatusClient();

  // The daemon's answer, which is checked to be a JSON object. Errors: those of why_unanswered() if
  // no answer comes within `timeout_ms`, kProtocol if the answer is something else.
  Result<std::string> request(int timeout_ms = kStatusTimeoutMs);

 private:
  const std::string endpoint_;
  std::unique_ptr<zmq::context_t> context_;  // created by the first request
};

// The folder that `runtime_dir` or else ELIXIR_RUNTIME_DIR names, without a check of its owner:
// root may look at another user's elixird. If neither names one: all folders in which an elixird of
// this user listens. If none listens: the folder where a service would. Never empty.
Result<std::vector<shm::RuntimeFolder>> folders_to_ask(const std::string& runtime_dir);

// Sorts services before launches' elixirds, and within each group the newest first.
void sort_answers(std::vector<std::string>* answers);

// Whether the answer comes from an elixird of this program's version. `status` is kVersionMismatch
// if it does not. If `is_status` is true, the fields that both versions know can still be shown.
struct AnswerVersion {
  bool is_status = false;
  Status status;
};
AnswerVersion version_of(std::string_view answer);

// The name of each job in an answer; "" for a job without a name.
std::vector<std::string> job_names(std::string_view answer);

}  // namespace elixir::ctl
