#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/token_file.h"

namespace elixir {

struct TokenDataOptions {
  std::vector<std::string> files;  // taken one after the other as one long text
  int64_t vocabulary = 256;
  int64_t seq = 128;  // tokens of one sequence
  uint64_t seed = 0;
};

// Training sequences from files. Which sequence a row is depends on (seed, step, global row)
// alone, so N ranks of B rows see exactly what one rank of N*B rows sees: rank r takes the rows
// [r*B, (r+1)*B), and a restarted run sees what the run before it saw.
//
// Immutable after open(); any thread may call fill().
class TokenData {
 public:
  // kBadInput for what TokenFile::open refuses, for text and .bin files mixed, and for files too
  // short for one sequence and its next token.
  static Result<TokenData> open(TokenDataOptions options);

  int64_t tokens() const { return tokens_; }
  int64_t seq() const { return options_.seq; }
  const std::vector<std::string>& files() const { return options_.files; }

  // Writes rows of `step` from global row `first_row` on, [rows, seq] each: `inputs` and, one token
  // further on, `targets`. kBadInput when a .bin file holds a token that is not below the
  // vocabulary.
  // REQUIRES: both spans hold rows * seq elements, which says how many rows there are.
  Status fill(int64_t step, int64_t first_row, std::span<int64_t> inputs,
              std::span<int64_t> targets) const;

 private:
  TokenData() = default;
  Status read(int64_t begin, std::span<int64_t> out) const;

  TokenDataOptions options_;
  std::vector<TokenFile> files_;
  std::vector<int64_t> begins_;  // files_[i] holds the tokens from begins_[i] on
  int64_t tokens_ = 0;
};

}  // namespace elixir
