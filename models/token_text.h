#pragma once

// Tokens as people write and read them: text if tokens are bytes (a vocabulary of 256), else
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

// Reads a list such as "1,2,3". kInvalidArgument: it is no such list, or a number is not below
// `vocabulary`.
Result<std::vector<int64_t>> parse_tokens(std::string_view list, int64_t vocabulary);
std::string token_list(std::span<const int64_t> tokens);  // "1,2,3"

// Shows bytes as text. UTF-8 stays unchanged, and so do ends of lines and tabs. Other bytes and
// control characters become \xHH, so that they cannot control a terminal.
std::string visible_text(std::string_view bytes);

// Like visible_text(), but in quotation marks and on one line. Ends of lines, tabs, quotation marks
// and backslashes become \n, \t, \" and \\.
std::string quoted_text(std::string_view bytes);

// Shows tokens: bytes with quoted_text() if `quoted`, else with visible_text(); other tokens as a
// list.
std::string shown_tokens(std::span<const int64_t> tokens, int64_t vocabulary, bool quoted);

}  // namespace elixir
