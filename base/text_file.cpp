#include "base/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/units.h"

namespace elixir {

Result<std::string> read_text_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno_status(Code::kBadInput, path);
  std::string text;
  char piece[1 << 16];
  for (;;) {
    const ssize_t bytes = ::read(file.get(), piece, sizeof piece);
    if (bytes < 0) return errno_status(Code::kBadInput, path);
    if (bytes == 0) return text;
    text.append(piece, static_cast<size_t>(bytes));
    if (text.size() > kMaxTextFileBytes) {
      return error(Code::kBadInput, "{} is longer than {}", path, format_bytes(kMaxTextFileBytes));
    }
  }
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
