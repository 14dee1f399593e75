#pragma once

// What elixir-run does to the output of its ranks: whole lines, each with its rank in front, to a
// descriptor that may be slow. No threads; neither class waits.

#include <string>
#include <string_view>

namespace elixir::launcher {

// Puts a prefix before each line of one stream. A line ends with '\n' or, as progress bars end
// theirs, with '\r'; "\r\n" is one end. A line longer than kMaxLineBytes is cut into several.
class LinePrefixer {
 public:
  static constexpr size_t kMaxLineBytes = 256 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends to `out` every line that `bytes` completes.
  void feed(std::string_view bytes, std::string* out);

  // The stream has ended: appends a last line that lacks its end, with one.
  void finish(std::string* out);

 private:
  void end_line(char end, std::string* out);

  const std::string prefix_;
  std::string line_;           // begun, not ended
  bool after_return_ = false;  // the last line ended with '\r'
};

// Text on its way to a descriptor that others share, so its flags are left as they are. Written
// only while the descriptor has room.
class OutputStream {
 public:
  // More than this waiting: read no more from those who produce it.
  static constexpr size_t kFullBytes = 256 * 1024;

  explicit OutputStream(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  std::string* buffer() { return &waiting_; }
  bool empty() const { return waiting_.empty(); }
  bool full() const { return waiting_.size() >= kFullBytes; }
  // Nobody reads the pipe any more. (What a full disk or a terminal that has ended does not take is
  // dropped, and the ranks go on.)
  bool broken() const { return broken_; }
  // errno of the last write that failed otherwise, as on a full disk: what was waiting was dropped,
  // later text is tried again. 0: none did.
  int lost() const { return lost_; }

  // Writes what fits now.
  void flush();
  // Writes all, for at most `timeout_ms` without progress.
  void flush_all(int timeout_ms);

 private:
  bool has_room(int timeout_ms) const;

  const int fd_;
  std::string waiting_;
  bool broken_ = false;
  int lost_ = 0;
};

}  // namespace elixir::launcher
