#include "models/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.h"

namespace elixir {
namespace {

Status bad_file(const std::string& path, const std::string& cause, const std::string& remedy) {
  return error(Code::kBadInput, "--data {}: {}; {}", path, cause, remedy);
}

// Text has tabs, line ends, form feeds and now and then an escape sequence; compressed or encoded
// data is one eighth control characters, most of which text never holds.
bool is_control(uint8_t byte) {
  return (byte < 0x20 && (byte < '\a' || byte > '\r') && byte != 0x1b) || byte == 0x7f;
}

Status check_text(const std::string& path, std::span<const uint8_t> text) {
  const void* nul = std::memchr(text.data(), 0, text.size());
  if (nul != nullptr) {
    const auto offset = static_cast<const uint8_t*>(nul) - text.data();
    return bad_file(path, fmt::format("not a text file: a NUL byte at offset {}", offset),
                    "give plain text (UTF-16 text converts with 'iconv -f UTF-16 -t UTF-8'), or "
                    "uint16 tokens in a file whose name ends in .bin");
  }
  const auto controls = static_cast<size_t>(std::count_if(text.begin(), text.end(), is_control));
  if (controls * 20 > text.size()) {
    return bad_file(path,
                    fmt::format("not a text file: {} of its {} bytes are control characters",
                                controls, text.size()),
                    "give plain text (uncompressed), or uint16 tokens in a file whose name ends "
                    "in .bin");
  }
  return {};
}

Status token_too_large(const std::string& path, int64_t token, int64_t at, int64_t vocabulary) {
  return bad_file(path,
                  fmt::format("token {} at position {} is not below the model's vocabulary of {}",
                              token, at, vocabulary),
                  "choose a --model with the vocabulary that the file was tokenised for "
                  "(small and larger: 50257), or tokenise it again");
}

}  // namespace

bool TokenFile::is_binary_name(std::string_view path) { return path.ends_with(".bin"); }

Result<TokenFile> TokenFile::open(const std::string& path, int64_t vocabulary) {
  // O_NONBLOCK: a FIFO without a writer must be refused, not waited for.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return bad_file(path, std::string("cannot be opened: ") + std::strerror(errno),
                    "give a file that exists and that you may read");
  }
  if (!S_ISREG(info.st_mode)) {
    return bad_file(path, S_ISDIR(info.st_mode) ? "a directory" : "not a regular file",
                    "name the files themselves, as in --data DIR/*.txt");
  }
  if (info.st_size == 0) return bad_file(path, "empty", "give a file with text in it");

  TokenFile file;
  file.path_ = path;
  file.vocabulary_ = vocabulary;
  const auto size_bytes = static_cast<uint64_t>(info.st_size);
  ELIXIR_RETURN_IF_ERROR(is_binary_name(path) ? file.map(fd.get(), size_bytes)
                                              : file.read_text(fd.get(), size_bytes));
  return file;
}

Status TokenFile::map(int fd, uint64_t size_bytes) {
  if (size_bytes % sizeof(uint16_t) != 0) {
    return bad_file(
        path_, fmt::format("{} bytes, which is odd; a .bin file holds uint16 tokens", size_bytes),
        "write it again (it may be truncated), or rename it if it is text");
  }
  void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return errno_status(Code::kInternal, "mmap of " + path_);
  mapping_ = std::shared_ptr<const uint16_t>(
      static_cast<const uint16_t*>(address),
      [address, size_bytes](const uint16_t*) { ::munmap(address, size_bytes); });
  tokens_ = static_cast<int64_t>(size_bytes / sizeof(uint16_t));

  std::vector<int64_t> head(static_cast<size_t>(std::min(tokens_, kCheckedTokens)));
  return read(0, head);
}

Status TokenFile::read_text(int fd, uint64_t size_bytes) {
  text_.resize(size_bytes);
  size_t done = 0;
  while (done < text_.size()) {
    const ssize_t got = ::read(fd, text_.data() + done, text_.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return bad_file(path_, std::string("cannot be read: ") + std::strerror(errno),
                      "give a file that you may read");
    }
    if (got == 0) break;  // truncated since fstat: what is left is the file
    done += static_cast<size_t>(got);
  }
  text_.resize(done);
  tokens_ = static_cast<int64_t>(done);
  return check_text(path_, text_);
}

Status TokenFile::read(int64_t begin, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  ELIXIR_CHECK(begin >= 0 && begin + count <= tokens_, "tokens {} to {} of {}", begin,
               begin + count, tokens_);
  if (!binary()) {
    std::copy_n(text_.begin() + begin, count, out.begin());
    return {};
  }
  const uint16_t* tokens = mapping_.get() + begin;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] >= vocabulary_) return token_too_large(path_, tokens[i], begin + i, vocabulary_);
    out[static_cast<size_t>(i)] = tokens[i];
  }
  return {};
}

}  // namespace elixir
