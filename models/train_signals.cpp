#include "models/train_signals.h"

#include <csignal>

#include "base/inherited.h"

namespace elixir {
namespace {

volatile std::sig_atomic_t g_stop_signal = 0, g_save_asked = 0;

void request_stop(int signal) { g_stop_signal = signal; }
void request_save(int) { g_save_asked = 1; }

void handle(int signal, void (*handler)(int), int flags) {
  if (is_ignored(signal)) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void catch_save_signal() { handle(SIGUSR1, request_save, SA_RESTART); }

bool take_save_signal() {
  const bool asked = g_save_asked != 0;
  g_save_asked = 0;
  return asked;
}

void catch_stop_signals() {
  constexpr int kOnce = SA_RESTART | static_cast<int>(SA_RESETHAND);
  handle(SIGINT, request_stop, kOnce);
  handle(SIGTERM, request_stop, kOnce);
}

int stop_signal() { return g_stop_signal; }

}  // namespace elixir
