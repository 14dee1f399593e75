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

// A label for positions where nothing is to be learnt. The value is torch's and transformers'.
inline constexpr int64_t kMaskedLabel = -100;

struct TokenFileOptions {
  int64_t vocabulary = 256;            // the model's: each token is below it
  std::optional<TokenType> bare = {};  // --tokens-dtype, for files without a header
  bool bytes = false;                  // --bytes: any text, whatever its name
  bool labels = false;                 // --labels: the file holds tokens or kMaskedLabel
};

// One file of tokens, read only. There are two kinds:
// - Token files are memory-mapped, so that the ranks of a node share their pages. They have a known
//   header (models/token_format.h) or the name *.bin, or `bare` is set.
// - All other files are text. They are read into memory as a whole, and each byte is a token.
//
// Immutable after open(); any thread may read. REQUIRES: no process truncates a mapped file. The
// kernel sends SIGBUS for a read of pages that are gone.
class TokenFile {
 public:
  // kBadInput, with the file, the cause and the remedy, if the file
  // - is missing, unreadable, empty or not a regular file;
  // - has a damaged header, or one for a larger vocabulary;
  // - is a bare .bin file, and `bare` is empty;
  // - is no text: NUL bytes, mostly control characters, or the mark of UTF-16;
  // - is text, and `bare` or `labels` is set;
  // - is JSON by name or content, unless `bytes`;
  // - has a token outside the vocabulary among the first kCheckedTokens.
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
  std::vector<uint8_t> text_;                 // only for text
  TokenFormat format_;                        // of the mapping
  std::shared_ptr<const std::byte> mapping_;  // the whole file; null: text
};

}  // namespace elixir
