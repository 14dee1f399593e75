#include <signal.h>
#include <sys/stat.h>

#include "base/cli.h"
#include "base/inherited.h"
#include "base/log.h"
#include "base/run_main.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/stop_signals.h"

namespace {

// Before any thread starts, so that all inherit it: signals arrive at the event loop alone.
void block_signals() {
  const sigset_t signals = elixir::daemon::stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // In their place a call of the system fails.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // ulimit -f, for memory to be shared, too
}

int elixird_main(int argc, const char* const* argv) {
  using namespace elixir;
  CLI::App app{"Keeps the optimizer states of this node's trainings and updates them", "elixird"};
  daemon::Config config;
  if (const int code = daemon::read_config(app, argc, argv, &config); code >= 0) return code;
  ::umask(0077);  // sockets and lock are for this user
  block_signals();
  init_log("elixird", config.log_level, /*drops=*/true);
  Result<std::unique_ptr<daemon::Daemon>> started = daemon::Daemon::start(config);
  if (!started.ok()) return report_failure(app, started.status());
  return (*started)->run();
}

}  // namespace

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::run_main("elixird", [&] { return elixird_main(argc, argv); });
}
