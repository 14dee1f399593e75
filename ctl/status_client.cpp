#include "ctl/status_client.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <zmq.hpp>

#include "base/fd.h"
#include "base/printable.h"
#include "base/spare_descriptors.h"
#include "base/spare_threads.h"
#include "base/uninterrupted.h"
#include "base/version.h"
#include "ctl/unanswered.h"
#include "shm/attach_socket.h"
#include "shm/layout.h"

namespace elixir::ctl {
namespace {

constexpr int64_t kMaxAnswerBytes = 16 << 20;
constexpr std::string_view kIpc = "ipc://";
constexpr uint32_t kZmqThreads = 2;  // of a context

constexpr int kNotWaited = 0;

// What a socket's path is, of what ZeroMQ takes.
std::string path_of(const std::string& endpoint) {
  return endpoint.starts_with(kIpc) ? endpoint.substr(kIpc.size()) : endpoint;
}

// A field of an answer's `daemon`; null where the answer, which may be anything, lacks it.
nlohmann::json daemon_field(const nlohmann::json& status, const char* name) {
  const bool there = status.is_object() && status.contains("daemon") &&
                     status["daemon"].is_object() && status["daemon"].contains(name);
  return there ? status["daemon"][name] : nlohmann::json();
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
    return why_unanswered(path_of(endpoint), timeout_ms).status();
  }
  zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
  zmq::message_t answer;
  if (uninterrupted<zmq::error_t>(
          [&] { return zmq::poll(&item, 1, std::chrono::milliseconds(timeout_ms)); }) == 0 ||
      !uninterrupted<zmq::error_t>(
          [&] { return socket.recv(answer, zmq::recv_flags::dontwait); })) {
    return why_unanswered(path_of(endpoint), timeout_ms).status();
  }
  std::string text = answer.to_string();
  if (answer.more() || !is_json_object(text)) {
    return error(Code::kProtocol, "the answer from {} is not a JSON object ({} bytes)", endpoint,
                 text.size());
  }
  return text;
}

}  // namespace

StatusClient::StatusClient(std::string endpoint) : endpoint_(std::move(endpoint)) {}

StatusClient::~StatusClient() = default;

Result<std::string> StatusClient::request(int timeout_ms) {
  ELIXIR_RETURN_IF_ERROR(check_spare_descriptors(kZmqDescriptors));
  // ZeroMQ would wait for somebody to listen; to say so at once is kinder.
  if (!shm::connect_now(path_of(endpoint_), SOCK_STREAM).ok() && errno != EAGAIN) {
    return why_unanswered(path_of(endpoint_), kNotWaited).status();
  }
  ELIXIR_RETURN_IF_ERROR(check_spare_threads(kZmqThreads));
  try {
    if (context_ == nullptr) context_ = std::make_unique<zmq::context_t>(1);
    return ask(*context_, endpoint_, timeout_ms);
  } catch (const zmq::error_t& failure) {
    return error(Code::kInternal, "asking {} for its status: {}", endpoint_, failure.what());
  }
}

Result<std::vector<shm::RuntimeFolder>> folders_to_ask(const std::string& runtime_dir) {
  if (!runtime_dir.empty()) return std::vector<shm::RuntimeFolder>{{runtime_dir}};
  const char* const named = std::getenv("ELIXIR_RUNTIME_DIR");
  if (named == nullptr || *named == '\0') {
    std::vector<shm::RuntimeFolder> all = shm::listening_folders();
    if (!all.empty()) return all;
  }
  Result<shm::RuntimeFolder> folder = shm::open_runtime_folder();
  if (!folder.ok()) return folder.status();
  return std::vector<shm::RuntimeFolder>{std::move(*folder)};
}

void sort_answers(std::vector<std::string>* answers) {
  struct Keyed {
    bool of_launch;
    double uptime_s;
    std::string answer;
  };
  std::vector<Keyed> keyed;
  for (std::string& answer : *answers) {
    const nlohmann::json status = nlohmann::json::parse(answer, nullptr, false);
    const nlohmann::json launch = daemon_field(status, "launch");
    const nlohmann::json uptime_s = daemon_field(status, "uptime_s");
    keyed.push_back({launch.is_string() && launch != "",
                     uptime_s.is_number() ? uptime_s.get<double>() : 0, std::move(answer)});
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const Keyed& a, const Keyed& b) {
    return std::tie(a.of_launch, a.uptime_s) < std::tie(b.of_launch, b.uptime_s);
  });
  for (size_t i = 0; i < keyed.size(); ++i) (*answers)[i] = std::move(keyed[i].answer);
}

AnswerVersion version_of(std::string_view answer) {
  constexpr const char* kRemedy =
      "install one Elixir for elixird and elixirctl, and restart elixird";
  const nlohmann::json status = nlohmann::json::parse(answer, nullptr, false);
  const nlohmann::json version = daemon_field(status, "version");
  const nlohmann::json layout = daemon_field(status, "layout_version");
  if (!version.is_string()) {
    return {false, error(Code::kVersionMismatch,
                         "elixirctl {} does not know this kind of status: {}", kVersion, kRemedy)};
  }
  if (version == kVersion && layout == shm::kLayoutVersion) return {true, Status()};
  return {true, error(Code::kVersionMismatch,
                      "elixird has version {} (layout {}), elixirctl has {} (layout {}), so fields "
                      "may be missing: {}",
                      printable(version.get<std::string>()), printable(layout.dump()), kVersion,
                      shm::kLayoutVersion, kRemedy)};
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
