#include "models/token_format.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>

namespace elixir {
namespace {

constexpr std::string_view kOwnMagic = "ELXTOKEN";
constexpr uint64_t kOwnHeaderBytes = 64;
constexpr std::string_view kNumpyMagic = "\x93NUMPY";
constexpr uint64_t kLlmcHeaderBytes = 1024;

struct LlmcFormat {
  uint32_t magic, version;
  TokenType type;
};
constexpr LlmcFormat kLlmcFormats[] = {{20240520, 1, TokenType::kUint16},
                                       {20240801, 7, TokenType::kUint32}};

struct NumpyType {
  std::string_view name;
  TokenType type;
};
constexpr NumpyType kNumpyTypes[] = {{"|u1", TokenType::kUint8},  {"|i1", TokenType::kInt8},
                                     {"<u2", TokenType::kUint16}, {"<u4", TokenType::kUint32},
                                     {"<u8", TokenType::kUint64}, {"<i2", TokenType::kInt16},
                                     {"<i4", TokenType::kInt32},  {"<i8", TokenType::kInt64}};

// REQUIRES: `head` holds it.
template <typename Number>
Number number_at(std::span<const std::byte> head, size_t offset) {
  Number number;
  std::memcpy(&number, head.data() + offset, sizeof number);
  return number;
}

std::string_view chars_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Status damaged(std::string_view format, std::string_view cause) {
  return error(Code::kBadInput, "{} header is damaged: {}; write the file again", format, cause);
}

Result<std::optional<TokenFormat>> check_size(const TokenFormat& format, uint64_t file_bytes) {
  const uint64_t held = file_bytes < format.offset ? 0 : file_bytes - format.offset;
  const uint64_t width = bytes_of(format.type);
  if (held % width == 0 && held / width == format.tokens) return std::optional(format);
  return error(Code::kBadInput,
               "its header says {} tokens of {} bytes, and {} bytes follow it; the file may be "
               "truncated: write it again",
               format.tokens, width, held);
}

Result<std::optional<TokenFormat>> read_own(std::span<const std::byte> head, uint64_t file_bytes) {
  if (head.size() < kOwnHeaderBytes) return damaged("Elixir's", "the file ends within it");
  const auto version = number_at<uint32_t>(head, 8);
  if (version != 1) {
    return error(Code::kBadInput,
                 "its header has version {}, and this Elixir knows version 1; update Elixir, or "
                 "write the file with this one's scripts/tokenize_text.py",
                 version);
  }
  const std::string_view name = chars_of(head.subspan(16, 16));
  const Result<TokenType> type = parse_name(kTokenTypeNames, name.substr(0, name.find('\0')));
  if (number_at<uint32_t>(head, 12) != kOwnHeaderBytes || !type.ok()) {
    return damaged("Elixir's", "its length or type is unknown");
  }
  return check_size({.type = *type,
                     .offset = kOwnHeaderBytes,
                     .tokens = number_at<uint64_t>(head, 40),
                     .vocabulary = number_at<uint64_t>(head, 32)},
                    file_bytes);
}

// The value behind 'key': in the Python dictionary that a .npy header is; "": none.
std::string_view numpy_value(std::string_view header, std::string_view key) {
  const std::string quoted = "'" + std::string(key) + "':";
  const size_t at = header.find(quoted);
  if (at == std::string_view::npos) return "";
  std::string_view value = header.substr(at + quoted.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  if (value.starts_with('[')) return value.substr(0, value.rfind(']') + 1);
  if (value.starts_with('(')) return value.substr(0, value.find(')') + 1);
  return value.substr(0, value.find_first_of(",}"));
}

Result<std::optional<TokenFormat>> read_numpy(std::span<const std::byte> head,
                                              uint64_t file_bytes) {
  if (head.size() < 12) return damaged("NumPy's", "the file ends within it");
  const auto version = number_at<uint8_t>(head, 6);
  const size_t begin = version == 1 ? 10 : 12;
  const uint64_t length =
      version == 1 ? number_at<uint16_t>(head, 8) : number_at<uint32_t>(head, 8);
  if (version < 1 || version > 3 || length > head.size() - begin) {
    return damaged("NumPy's", "its version or length is unknown");
  }
  const std::string_view header = chars_of(head.subspan(begin, length));
  std::string_view name = numpy_value(header, "descr");
  if (name.size() >= 2 && name.starts_with('\'')) name = name.substr(1, name.size() - 2);
  TokenFormat format{.offset = begin + length};
  const NumpyType* known = nullptr;
  for (const NumpyType& one : kNumpyTypes) {
    if (one.name == name) known = &one;
  }
  if (known == nullptr) {
    return error(Code::kBadInput,
                 "its array has the type {}, and tokens are little-endian integers; convert it, as "
                 "with array.astype('uint32')",
                 name);
  }
  format.type = known->type;
  const std::string_view shape = numpy_value(header, "shape");
  const char* const first = shape.data() + (shape.empty() ? 0 : 1);
  const char* const last = shape.data() + shape.size();
  const auto [after, fault] = std::from_chars(first, last, format.tokens);
  const std::string_view rest(after, static_cast<size_t>(last - after));
  if (fault != std::errc() || (rest != ",)" && rest != ")")) {
    return error(Code::kBadInput,
                 "its array has the shape {}, and tokens are one row; flatten it, as with "
                 "array.reshape(-1)",
                 shape);
  }
  return check_size(format, file_bytes);
}

}  // namespace

uint64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kUint16:
    case TokenType::kInt16:
      return 2;
    case TokenType::kUint32:
    case TokenType::kInt32:
      return 4;
    case TokenType::kUint64:
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

Result<std::optional<TokenFormat>> read_token_header(std::span<const std::byte> head,
                                                     uint64_t file_bytes) {
  const std::string_view text = chars_of(head);
  if (text.starts_with(kOwnMagic)) return read_own(head, file_bytes);
  if (text.starts_with(kNumpyMagic)) return read_numpy(head, file_bytes);
  if (head.size() < kLlmcHeaderBytes) return std::optional<TokenFormat>();
  for (const LlmcFormat& format : kLlmcFormats) {
    if (number_at<uint32_t>(head, 0) != format.magic) continue;
    if (number_at<uint32_t>(head, 4) != format.version) continue;
    return check_size(
        {.type = format.type, .offset = kLlmcHeaderBytes, .tokens = number_at<uint32_t>(head, 8)},
        file_bytes);
  }
  return std::optional<TokenFormat>();
}

Result<TokenFormat> bare_tokens(TokenType type, uint64_t file_bytes) {
  const uint64_t width = bytes_of(type);
  if (file_bytes % width == 0) return TokenFormat{.type = type, .tokens = file_bytes / width};
  return error(Code::kBadInput,
               "{} bytes are not a multiple of a token's {}; the file may be truncated, or have "
               "another --tokens-dtype",
               file_bytes, width);
}

}  // namespace elixir
