#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace elixir {

// Shows the progress of work that takes longer than two seconds, on standard error. A terminal gets
// one line that is redrawn, anything else a line every ten seconds. It has its own thread.
class ProgressNotes {
 public:
  // `line` returns the progress now, such as bytes_done(). The thread calls it.
  explicit ProgressNotes(std::function<std::string()> line);
  ~ProgressNotes();
  ProgressNotes(const ProgressNotes&) = delete;

 private:
  void run();

  const std::function<std::string()> line_;
  Mutex mutex_;
  CondVar ends_;
  bool ended_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Whether somebody may read standard error as it comes.
bool stderr_is_terminal();

// "WHAT: 1.50 GiB of 3.00 GiB, 50 %".
std::string bytes_done(const std::string& what, uint64_t done, uint64_t all);

}  // namespace elixir
