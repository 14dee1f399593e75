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
  std::vector<std::string> files;  // taken one after the other as one long text
  std::vector<std::string> labels =
      {};  // as many files of as many tokens in all; empty: the tokens
  int64_t vocabulary = 256;
  std::optional<TokenType> bare = {};  // as TokenFileOptions has it
  bool bytes = false;
  int64_t seq = 128;  // tokens of one sequence
  uint64_t seed = 0;
  // The flags that messages name.
  std::string files_flag = "--data", labels_flag = "--labels";
};

// Training sequences from files. Which sequence a row is depends on (seed, step, global row)
// alone, so N ranks of B rows see exactly what one rank of N*B rows sees: rank r takes the rows
// [r*B, (r+1)*B), and a restarted run sees what the run before it saw.
//
// Immutable after open(); any thread may call fill().
class TokenData {
 public:
  // kBadInput for what TokenFile::open refuses, for text and tokens mixed, for labels that are not
  // as many as the tokens, and for files too short for one sequence and its next token.
  static Result<TokenData> open(TokenDataOptions options);

  int64_t tokens() const { return tokens_of_.tokens; }
  int64_t seq() const { return options_.seq; }
  const std::vector<std::string>& files() const { return options_.files; }
  bool text() const { return tokens_of_.files.front().text(); }

  // Writes rows of `step` from global row `first_row` on, [rows, seq] each: `inputs` and, one token
  // further on, `targets`, of the labels if there are some. A row whose labels are all masked has
  // nothing to learn: the next `seq` tokens take its place. kBadInput for a token outside the
  // vocabulary, and if every label is masked.
  // REQUIRES: both spans hold rows * seq elements, which says how many rows there are.
  Status fill(int64_t step, int64_t first_row, std::span<int64_t> inputs,
              std::span<int64_t> targets) const;

  // The sequences that lie one behind the other, without overlap: [0, sequences()).
  int64_t sequences() const { return (tokens() - 1) / options_.seq; }
  // Writes sequence `index`: [seq] each, as fill() does. All of its labels may be masked.
  Status sequence(int64_t index, std::span<int64_t> inputs, std::span<int64_t> targets) const;

 private:
  // Files as one row of tokens.
  struct Row {
    std::vector<TokenFile> files;
    std::vector<int64_t> begins;  // files[i] holds the tokens from begins[i] on
    int64_t tokens = 0;

    Status add(const std::string& flag, const std::string& path, const TokenFileOptions& options);
    Status read(int64_t begin, std::span<int64_t> out) const;
  };
  TokenData() = default;
  // Targets of the row that begins at `*start`, or, if they are all masked, at a later place.
  Status fill_targets(int64_t* start, std::span<int64_t> targets) const;

  TokenDataOptions options_;
  Row tokens_of_, labels_of_;
};

}  // namespace elixir
