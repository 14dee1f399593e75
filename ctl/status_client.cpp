#include "ctl/status_client.h"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <zmq.hpp>

#include "base/spare_threads.h"
#include "base/uninterrupted.h"

namespace elixir::ctl {
namespace {

constexpr int64_t kMaxAnswerBytes = 16 << 20;
constexpr std::string_view kIpc = "ipc://";
constexpr uint32_t kZmqThreads = 2;  // of a context

Status nobody(const std::string& endpoint, const std::string& what) {
  return error(Code::kUnavailable,
               "no elixird answers at {} ({}); start one with elixir-run, or with systemctl --user "
               "start elixird, or name the folder of another with --runtime-dir",
               endpoint, what);
}

bool is_json_object(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false).is_object();
}

Result<std::string> ask(zmq::context_t& context, const std::string& endpoint, int timeout_ms) {
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, kMaxAnswerBytes);
  socket.set(zmq::sockopt::sndtimeo, timeout_ms);
  uninterrupted<zmq::error_t>([&] { socket.connect(endpoint); });
  if (!uninterrupted<zmq::error_t>(
          [&] { return socket.send(zmq::str_buffer("status"), zmq::send_flags::none); })) {
    return nobody(endpoint, "it takes no request");
  }
  zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
  zmq::message_t answer;
  if (uninterrupted<zmq::error_t>(
          [&] { return zmq::poll(&item, 1, std::chrono::milliseconds(timeout_ms)); }) == 0 ||
      !uninterrupted<zmq::error_t>(
          [&] { return socket.recv(answer, zmq::recv_flags::dontwait); })) {
    return nobody(endpoint, fmt::format("waited {} ms", timeout_ms));
  }
  std::string text = answer.to_string();
  if (answer.more() || !is_json_object(text)) {
    return error(Code::kProtocol, "the answer from {} is not a JSON object ({} bytes)", endpoint,
                 text.size());
  }
  return text;
}

}  // namespace

StatusClient::StatusClient(std::string endpoint)
    : endpoint_(std::move(endpoint)), context_(std::make_unique<zmq::context_t>(1)) {}

StatusClient::~StatusClient() = default;

Result<std::string> StatusClient::request(int timeout_ms) const {
  // ZeroMQ would wait for a socket that is not there; to say so at once is kinder.
  if (endpoint_.starts_with(kIpc) && ::access(endpoint_.c_str() + kIpc.size(), F_OK) != 0) {
    return nobody(endpoint_, "there is no such socket");
  }
  ELIXIR_RETURN_IF_ERROR(check_spare_threads(kZmqThreads));
  try {
    return ask(*context_, endpoint_, timeout_ms);
  } catch (const zmq::error_t& failure) {
    return nobody(endpoint_, failure.what());
  }
}

std::vector<std::string> job_names(std::string_view answer) {
  std::vector<std::string> names;
  const nlohmann::json status = nlohmann::json::parse(answer, nullptr, false);
  if (!status.is_object() || !status.contains("jobs")) return names;
  for (const nlohmann::json& job : status["jobs"]) {
    const bool named = job.is_object() && job.contains("job") && job["job"].is_string();
    names.push_back(named ? job["job"].get<std::string>() : "");
  }
  return names;
}

}  // namespace elixir::ctl
