#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elixir {

// One file of tokens, read only:
//   NAME.bin   tokens as little-endian uint16, memory-mapped (the ranks of a node share its pages)
//   any other  text: each byte is a token; read into memory as a whole
//
// Immutable after open(); any thread may read. A .bin file must not be truncated meanwhile: the
// kernel answers a read of pages that are gone with SIGBUS.
class TokenFile {
 public:
  // Fails with kBadInput, naming the file, the cause and the remedy: missing, unreadable, no
  // regular file, empty; text with NUL bytes or mostly control characters (that is, no text);
  // .bin of an odd number of bytes, or with a token >= `vocabulary` among its first
  // kCheckedTokens.
  static Result<TokenFile> open(const std::string& path, int64_t vocabulary);

  static constexpr int64_t kCheckedTokens = int64_t{1} << 20;
  static bool is_binary_name(std::string_view path);

  const std::string& path() const { return path_; }
  int64_t tokens() const { return tokens_; }
  bool binary() const { return mapping_ != nullptr; }

  // Writes tokens [begin, begin + out.size()) to `out`. kBadInput when one is not below the
  // vocabulary, which for .bin files is only found here after the first kCheckedTokens.
  // REQUIRES: the range lies in [0, tokens()).
  Status read(int64_t begin, std::span<int64_t> out) const;

 private:
  TokenFile() = default;
  Status map(int fd, uint64_t size_bytes);
  Status read_text(int fd, uint64_t size_bytes);

  std::string path_;
  int64_t vocabulary_ = 0;
  int64_t tokens_ = 0;
  std::vector<uint8_t> text_;                // text only
  std::shared_ptr<const uint16_t> mapping_;  // .bin only
};

}  // namespace elixir
