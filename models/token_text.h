#pragma once

// Tokens as a person writes and reads them: text where they are bytes (a vocabulary of 256), else
// numbers.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elixir {

inline constexpr int64_t kBytesVocabulary = 256;

std::vector<int64_t> tokens_of_text(std::string_view text);

// "1,2,3". kInvalidArgument: no such list, or a number that is not below `vocabulary`.
Result<std::vector<int64_t>> parse_tokens(std::string_view list, int64_t vocabulary);
std::string token_list(std::span<const int64_t> tokens);  // "1,2,3"

// UTF-8 as it is. Bytes that are none, and control characters but ends of lines and tabs, as \xHH,
// so that a terminal is not told anything.
std::string visible_text(std::string_view bytes);

// The same in quotation marks and on one line: ends of lines, tabs, quotation marks and backslashes
// as \n, \t, \" and \\.
std::string quoted_text(std::string_view bytes);

// Of all tokens: a text's bytes through `visible_text` or `quoted_text`, else the list.
std::string shown_tokens(std::span<const int64_t> tokens, int64_t vocabulary, bool quoted);

}  // namespace elixir
