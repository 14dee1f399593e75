#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/daemon_process.h"

namespace elixir::testing {

// A system call with a certain length as an argument.
struct HeldCall {
  int number = 0;
  int length_argument = 0;
  uint64_t bytes = 0;

  static HeldCall filling(uint64_t piece_bytes);        // MADV_POPULATE_WRITE of a piece of memory
  static HeldCall reading_table(uint64_t table_bytes);  // the table of parameters, at attach
};

// An elixird that asks the test before it makes such a call. So a test can hold a reservation,
// watch it, and make it fail. It uses seccomp's notifications (Linux 5.5).
class HeldFill {
 public:
  explicit HeldFill(const HeldCall& call, std::vector<std::string> arguments = {});
  explicit HeldFill(uint64_t piece_bytes, std::vector<std::string> arguments = {})
      : HeldFill(HeldCall::filling(piece_bytes), std::move(arguments)) {}
  // The held call fails; then elixird is ended.
  ~HeldFill();
  HeldFill(const HeldFill&) = delete;

  // False: the system does not allow it.
  bool possible() const { return daemon_ != nullptr; }
  DaemonProcess& daemon() { return *daemon_; }

  // Waits until elixird is about to make such a call.
  bool await();
  // End the wait of the call that await() found: the call is made, or it fails with this errno.
  void go_on() { answer(0); }
  void fail(int error) { answer(error); }

 private:
  void answer(int error);

  int listener_ = -1;
  uint64_t held_id_ = 0;
  int stop_fds_[2] = {-1, -1};  // a pipe: the thread waits for its end
  std::unique_ptr<DaemonProcess> daemon_;
  std::thread parent_;  // the thread with the filter; elixird dies with it
};

}  // namespace elixir::testing
