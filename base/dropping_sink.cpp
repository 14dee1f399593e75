#include "base/dropping_sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace elixir {

DroppingSink::DroppingSink(int fd) : fd_(fd) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) return;
  if (S_ISSOCK(about.st_mode)) {
    way_ = Way::kSend;
  } else if (S_ISFIFO(about.st_mode) || S_ISCHR(about.st_mode)) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd);
    opened_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    way_ = opened_.valid() ? Way::kNever : Way::kAskFirst;
    if (opened_.valid()) fd_ = opened_.get();
  }
}

void DroppingSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t text;
  formatter_->format(message, text);
  if (way_ != Way::kWrite && text.size() > PIPE_BUF) {
    text.resize(PIPE_BUF);
    text[PIPE_BUF - 1] = '\n';
  }
  if (dropped_ > 0) {
    const std::string_view line(text.data(), text.size());
    const size_t event = line.find("event=");
    // With the time, level and program of the line at hand.
    const std::string note = fmt::format("{}event=log_dropped lines={}\n",
                                         line.substr(0, std::min(event, line.size())), dropped_);
    if (!write_line(note)) {
      ++dropped_;
      return;
    }
    dropped_ = 0;
  }
  if (!write_line({text.data(), text.size()})) ++dropped_;
}

// A pipe takes PIPE_BUF bytes whole, or nothing of them: no line is cut by another process's.
bool DroppingSink::write_line(std::string_view line) {
  if (way_ == Way::kAskFirst) {
    pollfd writable{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (::poll(&writable, 1, 0) == 0) return false;
  }
  for (;;) {
    const ssize_t written = way_ == Way::kSend
                                ? ::send(fd_, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                                : ::write(fd_, line.data(), line.size());
    if (written >= 0 || errno != EINTR) return written == static_cast<ssize_t>(line.size());
  }
}

}  // namespace elixir
