#include "models/train_signals.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/inherited.h"
#include "client/ranks/launcher_note.h"

namespace elixir {
namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t g_stop_signal = 0, g_save_asked = 0;
volatile std::sig_atomic_t g_first_by_launcher = 0, g_passed_on = 0;
LauncherNote g_note;   // constant once signals are caught
bool g_saves = false;  // as well

void request_save(int) { g_save_asked = 1; }

void request_stop(int signal, siginfo_t* info, void*) {
  const bool by_launcher = g_note.launcher > 0 && info->si_pid == g_note.launcher;
  if (g_stop_signal == 0) {
    const int kept = errno;
    g_stop_signal = signal;
    g_first_by_launcher = by_launcher ? 1 : 0;
    if (g_saves && g_note.fd >= 0) {
      [[maybe_unused]] const ssize_t told = ::write(g_note.fd, "s", 1);
    }
    errno = kept;
    return;
  }
  if (signal == SIGHUP) return;  // a terminal that ends may send several
  if (by_launcher != (g_first_by_launcher != 0) && g_passed_on == 0) {
    g_passed_on = 1;
    return;
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // once this handler has returned
}

}  // namespace

void catch_save_signal() {
  g_note = launcher_note();
  if (is_ignored(SIGUSR1)) return;
  struct sigaction action {};
  action.sa_handler = request_save;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

bool take_save_signal() {
  const bool asked = g_save_asked != 0;
  g_save_asked = 0;
  return asked;
}

void catch_stop_signals(bool saves) {
  g_saves = saves;
  struct sigaction action {};
  action.sa_sigaction = request_stop;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (const int signal : kStopSignals) ::sigaddset(&action.sa_mask, signal);
  for (const int signal : kStopSignals) {
    if (!is_ignored(signal)) ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() { return g_stop_signal; }

}  // namespace elixir
