#pragma once

// Passes the output of elixir-run's ranks on: whole lines, each with its rank in front, to a
// descriptor that may be slow. No threads. Nothing here waits, except flush_all().

#include <string>
#include <string_view>

namespace elixir::launcher {

// Puts a prefix before each line of one stream. A line ends with '\n' or, as in progress bars, with
// '\r'; "\r\n" is one end. A line longer than kMaxLineBytes is cut into several.
class LinePrefixer {
 public:
  static constexpr size_t kMaxLineBytes = 256 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends to `out` every line that `bytes` completes.
  void feed(std::string_view bytes, std::string* out);

  // Call it when the stream has ended. Appends an unfinished last line, with an end.
  void finish(std::string* out);

 private:
  void end_line(char end, std::string* out);

  const std::string prefix_;
  std::string line_;           // begun, not ended
  bool after_return_ = false;  // the last line ended with '\r'
};

// Text on its way to a descriptor. Others share the descriptor, so its flags are left as they are.
// Text is written only while the descriptor has room.
class OutputStream {
 public:
  // If this much is waiting, read no more from those who produce it.
  static constexpr size_t kFullBytes = 256 * 1024;

  explicit OutputStream(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  std::string* buffer() { return &waiting_; }
  bool empty() const { return waiting_.empty(); }
  bool full() const { return waiting_.size() >= kFullBytes; }
  // Nobody reads the pipe any more. (Text that a full disk or a terminal that has ended does not
  // take is dropped, and the ranks continue.)
  bool broken() const { return broken_; }
  // errno of the last write that failed for another reason, such as a full disk; 0: none did. The
  // waiting text was dropped, and later text is tried again.
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
