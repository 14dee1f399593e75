#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/token_format.h"

namespace elixir {

// In a file of labels: nothing is to be learnt at this position. As in torch and transformers.
inline constexpr int64_t kMaskedLabel = -100;

struct TokenFileOptions {
  int64_t vocabulary = 256;            // of the model: each token is below it
  std::optional<TokenType> bare = {};  // --tokens-dtype, of files without a header
  bool bytes = false;                  // --bytes: any text, whatever its name
  bool labels = false;                 // --labels: tokens, or kMaskedLabel
};

// One file of tokens, read only:
//   a known header (models/token_format.h), the name *.bin
//   or `bare`                                                  tokens, memory-mapped, so that the
//                                                              ranks of a node share its pages
//   any other                                                  text: each byte is a token; read
//                                                              into memory as a whole
//
// Immutable after open(); any thread may read. Nobody may truncate a mapped file meanwhile: the
// kernel answers a read of pages that are gone with SIGBUS.
class TokenFile {
 public:
  // Fails with kBadInput, naming the file, the cause and the remedy: missing, unreadable, no
  // regular file, empty; a damaged header, or one for a larger vocabulary; a bare .bin file without
  // `bare`; text with NUL bytes, mostly control characters or the mark of UTF-16 (that is, no
  // text), or with `bare`; JSON by name or content, unless `bytes`; labels as text; a token outside
  // the vocabulary among the first kCheckedTokens.
  static Result<TokenFile> open(const std::string& path, const TokenFileOptions& options);

  static constexpr int64_t kCheckedTokens = int64_t{1} << 20;

  const std::string& path() const { return path_; }
  int64_t tokens() const { return tokens_; }
  bool text() const { return mapping_ == nullptr; }

  // Writes tokens [begin, begin + out.size()) to `out`. kBadInput if one is outside the vocabulary:
  // every token is checked before it is used, but at open() only the first kCheckedTokens.
  // REQUIRES: the range lies in [0, tokens()).
  Status read(int64_t begin, std::span<int64_t> out) const;

 private:
  TokenFile() = default;
  Status understand(int fd, uint64_t file_bytes);
  Status map(int fd, uint64_t file_bytes, const TokenFormat& format);
  Status read_text(int fd, uint64_t file_bytes);
  template <typename Number>
  Status read_as(int64_t begin, std::span<int64_t> out) const;

  std::string path_;
  TokenFileOptions options_;
  int64_t tokens_ = 0;
  std::vector<uint8_t> text_;                 // text only
  TokenFormat format_;                        // of the mapping
  std::shared_ptr<const std::byte> mapping_;  // the whole file; null: text
};

}  // namespace elixir
