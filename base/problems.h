#pragma once

#include <utility>
#include <vector>

#include "base/status.h"

namespace elixir {

// All faults of a user's request. They are reported together, so that one round of corrections is
// enough. The first problem has the exit code.
class Problems {
 public:
  // Adds nothing for an ok status, or for a message that is already there.
  void add(const Status& status) {
    if (status.ok()) return;
    for (const Status& known : all_) {
      if (known.message() == status.message()) return;
    }
    all_.push_back(status);
  }
  void add(const Problems& others) {
    for (const Status& status : others.all_) add(status);
  }

  bool empty() const { return all_.empty(); }
  const std::vector<Status>& all() const { return all_; }

 private:
  std::vector<Status> all_;
};

}  // namespace elixir
