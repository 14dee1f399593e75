#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace elixir {

// Tells on standard error how far something is that takes longer than two seconds: on a terminal in
// one line, that is drawn over, elsewhere in a line every ten seconds. A thread of its own asks.
class ProgressNotes {
 public:
  // `line`: what there is to tell now, such as bytes_done(). Called by the thread.
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

// "WHAT: 1.50 GiB of 3.00 GiB, 50 %".
std::string bytes_done(const std::string& what, uint64_t done, uint64_t all);

}  // namespace elixir
