#include "base/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <system_error>

#include "base/fd.h"
#include "base/units.h"

namespace elixir {

namespace {

Status too_long(const std::string& path) {
  return error(Code::kBadInput, "{} is longer than {}", path, format_bytes(kMaxTextFileBytes));
}

Result<std::string> read_all(const UniqueFd& file, const std::string& path) {
  std::string text;
  char piece[1 << 16];
  for (;;) {
    const ssize_t bytes = ::read(file.get(), piece, sizeof piece);
    if (bytes < 0) return errno_status(Code::kBadInput, path);
    if (bytes == 0) return text;
    text.append(piece, static_cast<size_t>(bytes));
    if (text.size() > kMaxTextFileBytes) return too_long(path);
  }
}

}  // namespace

Result<std::string> read_text_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno_status(Code::kBadInput, path);
  return read_all(file, path);
}

Result<std::string> read_ordinary_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat about {};
  if (!file.valid() || ::fstat(file.get(), &about) != 0) {
    return errno_status(Code::kBadInput, path);
  }
  if (!S_ISREG(about.st_mode)) {
    return error(Code::kBadInput, "{} is not an ordinary file: put one in its place", path);
  }
  if (static_cast<uint64_t>(about.st_size) > kMaxTextFileBytes) return too_long(path);
  return read_all(file, path);
}

std::optional<uint64_t> read_number(const std::string& path) {
  const Result<std::string> text = read_text_file(path);
  uint64_t number = 0;
  if (!text.ok()) return std::nullopt;
  if (std::from_chars(text->data(), text->data() + text->size(), number).ec != std::errc()) {
    return std::nullopt;
  }
  return number;
}

Status write_text_file(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return errno_status(Code::kBadInput, path);
  while (!text.empty()) {
    const ssize_t bytes = ::write(file.get(), text.data(), text.size());
    if (bytes < 0) return errno_status(Code::kBadInput, path);
    text.remove_prefix(static_cast<size_t>(bytes));
  }
  return Status();
}

}  // namespace elixir
