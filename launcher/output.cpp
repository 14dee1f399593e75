#include "launcher/output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace elixir::launcher {

void LinePrefixer::end_line(char end, std::string* out) {
  out->append(prefix_).append(line_).push_back(end);
  line_.clear();
}

void LinePrefixer::feed(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const bool second_half = after_return_ && bytes.front() == '\n';
    after_return_ = false;
    if (second_half) {  // of "\r\n": the line is out, its end is completed
      out->push_back('\n');
      bytes.remove_prefix(1);
      continue;
    }
    ELIXIR_CHECK(line_.size() < kMaxLineBytes, "a line of {} bytes is not out", line_.size());
    const size_t end = bytes.find_first_of("\r\n");
    const size_t taken = std::min({end, bytes.size(), kMaxLineBytes - line_.size()});
    line_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (taken == end) {
      const char character = bytes.front();
      bytes.remove_prefix(1);
      after_return_ = character == '\r';
      // A '\r' that only goes back to the start of an empty line shows nothing.
      if (character == '\n' || !line_.empty()) end_line(character, out);
    } else if (line_.size() == kMaxLineBytes) {
      end_line('\n', out);
    }
  }
}

void LinePrefixer::finish(std::string* out) {
  if (!line_.empty()) end_line('\n', out);
}

bool OutputStream::has_room(int timeout_ms) const {
  pollfd entry{fd_, POLLOUT, 0};
  return ::poll(&entry, 1, timeout_ms) > 0;
}

void OutputStream::flush() { flush_all(0); }

void OutputStream::flush_all(int timeout_ms) {
  size_t done = 0;
  while (done < waiting_.size() && !broken_ && has_room(timeout_ms)) {
    // A pipe with room takes PIPE_BUF bytes without waiting, and in one piece.
    const size_t part = std::min<size_t>(waiting_.size() - done, PIPE_BUF);
    const ssize_t wrote = ::write(fd_, waiting_.data() + done, part);
    if (wrote > 0) {
      done += static_cast<size_t>(wrote);
    } else if (wrote < 0 && errno == EAGAIN) {
      break;
    } else if (wrote < 0 && errno == EPIPE) {
      broken_ = true;
    } else if (wrote < 0 && errno != EINTR) {
      lost_ = errno;
      done = waiting_.size();
    }
  }
  waiting_.erase(0, broken_ ? std::string::npos : done);
}

}  // namespace elixir::launcher
