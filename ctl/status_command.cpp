// elixirctl status: asks an elixird how it is.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/inherited.h"
#include "ctl/command.h"
#include "ctl/status_client.h"
#include "ctl/status_legend.h"
#include "ctl/status_text.h"
#include "shm/runtime_folder.h"

namespace elixir::ctl {
namespace {

constexpr const char* kChoose =
    "(elixirctl status --runtime-dir FOLDER shows one of them, as does ELIXIR_RUNTIME_DIR)\n";

struct StatusArguments {
  std::string runtime_dir;
  bool json = false;
  bool watch = false;
  bool legend = false;
};

std::atomic<bool> interrupted = false;

void watch_for_interrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };  // no SA_RESTART: sleep returns
  for (int signal : {SIGINT, SIGTERM}) {
    if (!is_ignored(signal)) ::sigaction(signal, &action, nullptr);
  }
}

// What all elixirds meant by the arguments say. `status` names those that do not answer.
struct Answers {
  std::string text;
  std::string notes = {};  // of those of another version, for standard error
  Status status = {};
};

Answers ask_all(const StatusArguments& arguments) {
  const Result<std::vector<shm::RuntimeFolder>> folders = folders_to_ask(arguments.runtime_dir);
  if (!folders.ok()) return {.text = "", .status = folders.status()};
  Answers result;
  std::vector<std::string> answers;
  for (const shm::RuntimeFolder& folder : *folders) {
    Result<std::string> answer = StatusClient(folder.status_endpoint()).request();
    Status why = answer.status();
    if (answer.ok()) {
      const AnswerVersion version = version_of(*answer);
      why = version.is_status ? Status() : version.status;
      if (version.is_status && !version.status.ok()) {
        result.notes += fmt::format("elixirctl: {}\n", version.status.message());
      }
    }
    if (why.ok()) {
      answers.push_back(std::move(*answer));
    } else if (result.status.ok()) {
      result.status = why;
    } else {
      result.status = error(why.code(), "{}; {}", result.status.message(), why.message());
    }
  }
  sort_answers(&answers);
  for (const std::string& answer : answers) {
    if (!result.text.empty() && !arguments.json) result.text += "\n";
    result.text += arguments.json ? answer + "\n" : status_text(answer);
  }
  if (answers.size() > 1 && !arguments.json) result.text += "\n" + std::string(kChoose);
  return result;
}

// Until interrupted, once a second; an elixird that is not there now may come.
void watch(const StatusArguments& arguments) {
  watch_for_interrupt();
  const bool screen = ::isatty(STDOUT_FILENO) != 0 && !arguments.json;
  while (!interrupted) {
    const Answers answers = ask_all(arguments);
    if (interrupted) break;
    if (screen) std::cout << "\x1b[H\x1b[J";
    std::cout << answers.text << (arguments.json || screen || answers.text.empty() ? "" : "\n");
    if (!answers.status.ok()) {
      (screen ? std::cout : std::cerr) << "waiting: " << answers.status.message() << "\n";
    }
    if (!std::cout.flush()) break;  // nobody reads any more
    ::sleep(1);
  }
}

Status status_command(const StatusArguments& arguments) {
  if (arguments.legend) {
    std::cout << status_legend();
    return Status();
  }
  if (arguments.watch) {
    watch(arguments);
    return Status();
  }
  const Answers answers = ask_all(arguments);
  std::cerr << answers.notes;
  std::cout << answers.text;
  return answers.status;
}

}  // namespace

Command add_status(CLI::App& app) {
  const auto arguments = std::make_shared<StatusArguments>();
  CLI::App* status =
      app.add_subcommand("status", "Your elixirds, their jobs, memory, progress and update rate");
  status->add_flag("--json", arguments->json,
                   "Print each elixird's answer as it is, one JSON object a line");
  status->add_flag("--watch", arguments->watch, "Again every second until interrupted");
  status->add_flag("--legend", arguments->legend, "Print what each line means");
  status->add_option("--runtime-dir", arguments->runtime_dir,
                     "elixird's folder (default: ELIXIR_RUNTIME_DIR, else all of this user)");
  return {status, [arguments, &app] {
            const Status result = status_command(*arguments);
            return result.ok() ? 0 : report_failure(app, result);
          }};
}

}  // namespace elixir::ctl
