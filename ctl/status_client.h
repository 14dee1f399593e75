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

// Asks an elixird how it is. Each request is a connection of its own, so that a daemon may come
// and go between two of them. Not thread-safe.
class StatusClient {
 public:
  // `endpoint` as RuntimeFolder::status_endpoint() gives it.
  explicit StatusClient(std::string endpoint);
  ~StatusClient();

  // The daemon's answer: a JSON object, checked to be one. kUnavailable when there is none within
  // `timeout_ms`, kProtocol when it is something else.
  Result<std::string> request(int timeout_ms = 2000) const;

 private:
  const std::string endpoint_;
  const std::unique_ptr<zmq::context_t> context_;
};

// The name of each job of an answer; "" where it has none.
std::vector<std::string> job_names(std::string_view answer);

}  // namespace elixir::ctl
