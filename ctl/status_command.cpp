// elixirctl status: asks an elixird how it is.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>

#include "ctl/command.h"
#include "ctl/status_client.h"
#include "ctl/status_text.h"
#include "shm/runtime_folder.h"

namespace elixir::ctl {
namespace {

struct StatusArguments {
  std::string runtime_dir;
  bool json = false;
  bool watch = false;
};

std::atomic<bool> interrupted = false;

void watch_for_interrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };  // no SA_RESTART: sleep returns
  for (int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

// A folder that was named is used as it is: root may look at another user's elixird.
Result<shm::RuntimeFolder> folder_of(const StatusArguments& arguments) {
  if (!arguments.runtime_dir.empty()) return shm::RuntimeFolder{arguments.runtime_dir};
  return shm::open_runtime_folder();
}

// Where it is of another version: on standard error, beside what can be shown.
Status check_version(const std::string& answer) {
  const AnswerVersion version = version_of(answer);
  if (!version.is_status) return version.status;
  if (!version.status.ok()) std::cerr << "elixirctl: " << version.status.message() << "\n";
  return Status();
}

std::string shown(const std::string& answer, const StatusArguments& arguments) {
  return arguments.json ? answer + "\n" : status_text(answer);
}

// Until interrupted, once a second; an elixird that is not there now may come.
void watch(const StatusClient& client, const StatusArguments& arguments) {
  watch_for_interrupt();
  const bool screen = ::isatty(STDOUT_FILENO) != 0 && !arguments.json;
  while (!interrupted) {
    Result<std::string> answer = client.request();
    if (answer.ok() && !version_of(*answer).is_status) answer = version_of(*answer).status;
    if (interrupted) break;
    if (screen) std::cout << "\x1b[H\x1b[J";
    if (answer.ok()) {
      std::cout << shown(*answer, arguments) << (arguments.json || screen ? "" : "\n");
    } else {
      (screen ? std::cout : std::cerr) << "waiting: " << answer.status().message() << "\n";
    }
    if (!std::cout.flush()) break;  // nobody reads any more
    ::sleep(1);
  }
}

Status status_command(const StatusArguments& arguments) {
  const Result<shm::RuntimeFolder> folder = folder_of(arguments);
  if (!folder.ok()) return folder.status();
  const StatusClient client(folder->status_endpoint());
  if (arguments.watch) {
    watch(client, arguments);
    return Status();
  }
  const Result<std::string> answer = client.request();
  if (!answer.ok()) return answer.status();
  ELIXIR_RETURN_IF_ERROR(check_version(*answer));
  std::cout << shown(*answer, arguments);
  return Status();
}

}  // namespace

Command add_status(CLI::App& app) {
  const auto arguments = std::make_shared<StatusArguments>();
  CLI::App* status =
      app.add_subcommand("status", "The daemon, its jobs, their memory, progress and update rate");
  status->add_flag("--json", arguments->json, "Print elixird's answer as it is, one JSON object");
  status->add_flag("--watch", arguments->watch, "Again every second until interrupted");
  status->add_option("--runtime-dir", arguments->runtime_dir,
                     "elixird's folder (default: ELIXIR_RUNTIME_DIR, else one of this user)");
  return {status, [arguments, &app] {
            const Status result = status_command(*arguments);
            return result.ok() ? 0 : report_failure(app, result);
          }};
}

}  // namespace elixir::ctl
