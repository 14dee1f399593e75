#include "models/token_file.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "checkpoint/json_values.h"

namespace elixir {
namespace {

Status bad_file(const std::string& path, const std::string& cause, const std::string& remedy) {
  return error(Code::kBadInput, "{}: {}; {}", path, cause, remedy);
}

// Text has tabs, line ends, form feeds and now and then an escape sequence; compressed or encoded
// data is one eighth control characters, most of which text never holds.
bool is_control(uint8_t byte) {
  return (byte < 0x20 && (byte < '\a' || byte > '\r') && byte != 0x1b) || byte == 0x7f;
}

constexpr const char* kFromUtf16 = "UTF-16 text converts with 'iconv -f UTF-16 -t UTF-8'";

std::span<const uint8_t> text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

Status check_text(const std::string& path, std::span<const uint8_t> text) {
  const bool marked = text.size() >= 2 && ((text[0] == 0xff && text[1] == 0xfe) ||
                                           (text[0] == 0xfe && text[1] == 0xff));
  if (marked) {
    return bad_file(path, "not a text in UTF-8: it begins with the byte order mark of UTF-16",
                    kFromUtf16);
  }
  const void* nul = std::memchr(text.data(), 0, text.size());
  if (nul != nullptr) {
    const auto offset = static_cast<const uint8_t*>(nul) - text.data();
    return bad_file(
        path, fmt::format("not a text file: a NUL byte at offset {}", offset),
        fmt::format("give plain text ({}), a token file of scripts/tokenize_text.py, or bare "
                    "tokens with their --tokens-dtype",
                    kFromUtf16));
  }
  const auto controls = static_cast<size_t>(std::count_if(text.begin(), text.end(), is_control));
  if (controls * 20 > text.size()) {
    return bad_file(
        path,
        fmt::format("not a text file: {} of its {} bytes are control characters", controls,
                    text.size()),
        "give plain text (uncompressed), a token file of scripts/tokenize_text.py, or bare "
        "tokens with their --tokens-dtype");
  }
  return {};
}

Status outside_vocabulary(const std::string& path, int64_t token, int64_t at,
                          const TokenFileOptions& options) {
  return bad_file(path,
                  fmt::format("{} {} at position {} is outside the model's vocabulary of {}{}",
                              options.labels ? "label" : "token", token, at, options.vocabulary,
                              options.labels ? ", and it is not -100" : ""),
                  token < 0 && !options.labels
                      ? "masked positions (-100) belong into a file of labels (--labels)"
                      : "give tokens of this model's tokenizer (scripts/tokenize_text.py), and "
                        "their --tokens-dtype "
                        "if the file has no header");
}

// Text for people, but not to learn from as it is.
bool is_json_name(const std::string& path) {
  constexpr const char* kEndings[] = {".jsonl", ".ndjson", ".json"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](std::string_view ending) {
    return path.size() >= ending.size() &&
           ::strcasecmp(path.c_str() + path.size() - ending.size(), ending.data()) == 0;
  });
}

// The first line that is not blank is an object: a file of JSON lines by any name. `head` is the
// file's beginning; a line that does not end in it counts by its name alone.
bool is_json_lines(std::span<const std::byte> head) {
  std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (!text.starts_with('{')) return false;
  const auto line = checkpoints::parse_json(text.substr(0, text.find('\n')));
  return line.ok() && line->is_object();
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::string& path, const TokenFileOptions& options) {
  if (path.find("://") != path.npos) {
    return bad_file(path, "it is a URL, and only files are read",
                    "download it first, as with: curl -LO " + path);
  }
  // O_NONBLOCK: a FIFO without a writer must be an error, not a wait.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    const int failure = errno;
    const Status failed = errno_status(Code::kBadInput, path + ": cannot be opened");
    if (failed.code() == Code::kResourceExhausted) return failed;
    return bad_file(path, std::string("cannot be opened: ") + std::strerror(failure),
                    "give a file that exists and that you may read");
  }
  if (!S_ISREG(info.st_mode)) {
    return bad_file(path, S_ISDIR(info.st_mode) ? "a directory" : "not a regular file",
                    "name the files themselves, as in --data DIR/*.txt");
  }
  if (info.st_size == 0) return bad_file(path, "empty", "give a file with text in it");

  TokenFile file;
  file.path_ = path;
  file.options_ = options;
  ELIXIR_RETURN_IF_ERROR(file.understand(fd.get(), static_cast<uint64_t>(info.st_size)));
  return file;
}

Status TokenFile::understand(int fd, uint64_t file_bytes) {
  std::vector<std::byte> head(std::min<uint64_t>(file_bytes, kTokenHeaderBytes));
  const ssize_t got = ::pread(fd, head.data(), head.size(), 0);
  if (got < 0) {
    return bad_file(path_, std::string("cannot be read: ") + std::strerror(errno),
                    "give a file that you may read");
  }
  head.resize(static_cast<size_t>(got));
  const Result<std::optional<TokenFormat>> found = read_token_header(head, file_bytes);
  if (!found.ok()) return error(found.status().code(), "{}: {}", path_, found.status().message());
  if (*found) return map(fd, file_bytes, **found);
  const bool named_bare = path_.ends_with(".bin");
  if (options_.bare && !named_bare && check_text(path_, text_of(head)).ok()) {
    return bad_file(path_, "it is text, and --tokens-dtype is for bare tokens",
                    "leave out --tokens-dtype, or name a file of tokens *.bin");
  }
  if (named_bare || options_.bare) {
    if (!options_.bare) {
      return bad_file(path_, "it has no header that says how wide its tokens are",
                      "say it with --tokens-dtype (uint16, as nanoGPT writes them, uint32 or "
                      "int32), or make the file with scripts/tokenize_text.py");
    }
    const Result<TokenFormat> bare = bare_tokens(*options_.bare, file_bytes);
    if (!bare.ok()) return error(bare.status().code(), "{}: {}", path_, bare.status().message());
    return map(fd, file_bytes, *bare);
  }
  if (options_.labels) {
    return bad_file(path_, "labels are tokens, not text",
                    "give a token file: .npy, or bare tokens with --tokens-dtype int32");
  }
  if (!options_.bytes && (is_json_name(path_) || is_json_lines(head))) {
    return bad_file(path_, "JSON is not read: its keys and quotes would be trained on",
                    "write the text itself into a file, or its tokens (scripts/tokenize_text.py); "
                    "--bytes trains on the file as it is");
  }
  return read_text(fd, file_bytes);
}

Status TokenFile::map(int fd, uint64_t file_bytes, const TokenFormat& format) {
  if (format.tokens == 0) return bad_file(path_, "it holds no token", "write it again");
  if (format.vocabulary > static_cast<uint64_t>(options_.vocabulary)) {
    return bad_file(path_,
                    fmt::format("its tokens are of a vocabulary of {}, and the model's is {}",
                                format.vocabulary, options_.vocabulary),
                    "give tokens of this model's tokenizer (scripts/tokenize_text.py)");
  }
  void* const address = ::mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return errno_status(Code::kInternal, "mmap of " + path_);
  mapping_ = std::shared_ptr<const std::byte>(
      static_cast<const std::byte*>(address),
      [address, file_bytes](const std::byte*) { ::munmap(address, file_bytes); });
  format_ = format;
  tokens_ = static_cast<int64_t>(format.tokens);

  std::vector<int64_t> first(static_cast<size_t>(std::min(tokens_, kCheckedTokens)));
  return read(0, first);
}

Status TokenFile::read_text(int fd, uint64_t file_bytes) {
  text_.resize(file_bytes);
  size_t done = 0;
  while (done < text_.size()) {
    const ssize_t got =
        ::pread(fd, text_.data() + done, text_.size() - done, static_cast<off_t>(done));
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
  if (text()) {
    std::copy_n(text_.begin() + begin, count, out.begin());
    return {};
  }
  switch (format_.type) {
    case TokenType::kUint8:
      return read_as<uint8_t>(begin, out);
    case TokenType::kUint16:
      return read_as<uint16_t>(begin, out);
    case TokenType::kUint32:
      return read_as<uint32_t>(begin, out);
    case TokenType::kUint64:
      return read_as<uint64_t>(begin, out);
    case TokenType::kInt8:
      return read_as<int8_t>(begin, out);
    case TokenType::kInt16:
      return read_as<int16_t>(begin, out);
    case TokenType::kInt32:
      return read_as<int32_t>(begin, out);
    case TokenType::kInt64:
      return read_as<int64_t>(begin, out);
  }
  return error(Code::kInternal, "a token type that is none");
}

// Headers have any length, so a token may be anywhere.
template <typename Number>
Status TokenFile::read_as(int64_t begin, std::span<int64_t> out) const {
  const std::byte* at =
      mapping_.get() + format_.offset + static_cast<uint64_t>(begin) * sizeof(Number);
  for (size_t i = 0; i < out.size(); ++i, at += sizeof(Number)) {
    Number number;
    std::memcpy(&number, at, sizeof number);
    const auto token = static_cast<int64_t>(number);  // above 2^63: negative
    const bool inside = token >= 0 && token < options_.vocabulary;
    if (!inside && !(options_.labels && token == kMaskedLabel)) {
      return outside_vocabulary(path_, token, begin + static_cast<int64_t>(i), options_);
    }
    out[i] = token;
  }
  return {};
}

}  // namespace elixir
