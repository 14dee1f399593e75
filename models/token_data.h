#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/token_file.h"

namespace elixir {

struct TokenDataOptions {
  std::vector<std::string> files;  // read one after the other, as one long text
  std::vector<std::string> labels =
      {};  // as many labels in all as `files` have tokens; empty: the tokens
  int64_t vocabulary = 256;
  std::optional<TokenType> bare = {};  // see TokenFileOptions
  bool bytes = false;
  int64_t seq = 128;  // tokens of one sequence
  uint64_t seed = 0;
  // Flags for error messages.
  std::string files_flag = "--data", labels_flag = "--labels";
};

// Training sequences from files. The sequence of a row depends only on (seed, step, global row).
// Rank r takes the rows [r*B, (r+1)*B), so N ranks of B rows see exactly the sequences of one rank
// of N*B rows. A restarted run sees the sequences of the run before it.
//
// Immutable after open(); any thread may call fill().
class TokenData {
 public:
  // kBadInput: errors of TokenFile::open; text and tokens are mixed; there are more or fewer labels
  // than tokens; or the files are too short for one sequence and its next token.
  static Result<TokenData> open(TokenDataOptions options);

  int64_t tokens() const { return tokens_of_.tokens; }
  int64_t seq() const { return options_.seq; }
  const std::vector<std::string>& files() const { return options_.files; }
  bool text() const { return tokens_of_.files.front().text(); }

  // Writes rows of `step` from global row `first_row` on, [rows, seq] each: `inputs`, and `targets`
  // one token further on, taken from the labels if there are some. A row whose labels are all
  // masked has nothing to learn: the next `seq` tokens take its place. kBadInput: a token is
  // outside the vocabulary, or every label is masked.
  // REQUIRES: both spans hold rows * seq elements, which says how many rows there are.
  Status fill(int64_t step, int64_t first_row, std::span<int64_t> inputs,
              std::span<int64_t> targets) const;

  // The number of sequences that lie one after the other, without overlap.
  int64_t sequences() const { return (tokens() - 1) / options_.seq; }
  // Writes sequence `index`, [seq] each, like fill(), but all of its labels may be masked.
  // REQUIRES: `index` is in [0, sequences()).
  Status sequence(int64_t index, std::span<int64_t> inputs, std::span<int64_t> targets) const;

 private:
  // Several files as one row of tokens.
  struct Row {
    std::vector<TokenFile> files;
    std::vector<int64_t> begins;  // files[i] holds the tokens from begins[i] on
    int64_t tokens = 0;

    Status add(const std::string& flag, const std::string& path, const TokenFileOptions& options);
    Status read(int64_t begin, std::span<int64_t> out) const;
  };
  TokenData() = default;
  // Writes the targets of the row that begins at `*start`. If all are masked, moves `*start` on to
  // a later place.
  Status fill_targets(int64_t* start, std::span<int64_t> targets) const;

  TokenDataOptions options_;
  Row tokens_of_, labels_of_;
};

}  // namespace elixir
