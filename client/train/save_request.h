#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/fork.h"
#include "base/mutex.h"
#include "client/plan/save_options.h"
#include "client/session/session.h"

namespace elixir {

// A save by elixird. All copies of its Saving share it. Any thread. It may outlive the session:
// after close() it keeps the outcome that was known by then.
class SaveRequest {
 public:
  // `step` counts since the run first began.
  SaveRequest(Session& session, uint32_t number, std::string path, uint64_t step);

  bool done();
  double progress();
  SaveReport wait();

  // Keeps the outcome, if it is there, before the session reuses its record.
  void look() { (void)done(); }
  // Call it when the session is about to end. No wait uses the session afterwards.
  void close();

 private:
  // Waits for the outcome, at most `seconds`. The session stays alive while there are users.
  bool look_for(double seconds);
  void keep(const Result<bool>& ended) ELIXIR_REQUIRES(mutex_);
  bool in_child() const { return forks() != forks_; }

  const uint32_t forks_ = forks();
  const uint32_t number_;
  const std::string path_;
  const uint64_t step_;

  Mutex mutex_;
  CondVar unused_;
  Session* session_ ELIXIR_GUARDED_BY(mutex_);  // null: closed
  uint32_t users_ ELIXIR_GUARDED_BY(mutex_) = 0;
  std::optional<FolderOutcome> outcome_ ELIXIR_GUARDED_BY(mutex_);
};

}  // namespace elixir
