#include "models/token_text.h"

#include <charconv>

namespace elixir {
namespace {

// The length of the UTF-8 sequence that `text` begins with (Unicode 15, table 3-7); 0: none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  const unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

// U+0080 to U+009F are control characters, too: C2 80 to C2 9F.
bool is_control(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 2) return first == 0xC2 && static_cast<unsigned char>(sequence[1]) < 0xA0;
  return sequence.size() == 1 && (first < 0x20 || first == 0x7F);
}

// What a quoted text has in the place of a character; "": the character.
std::string_view escaped(char character) {
  switch (character) {
    case '\n':
      return "\\n";
    case '\t':
      return "\\t";
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    default:
      return "";
  }
}

std::string readable(std::string_view bytes, bool quoted) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = utf8_length(bytes);
    const std::string_view sequence = bytes.substr(0, length == 0 ? 1 : length);
    const char first = sequence[0];
    const std::string_view in_its_place = quoted ? escaped(first) : "";
    if (!in_its_place.empty()) {
      text += in_its_place;
    } else if (length == 0 ||
               (is_control(sequence) && (quoted || (first != '\n' && first != '\t')))) {
      for (const char byte : sequence) {
        text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    } else {
      text += sequence;
    }
    bytes.remove_prefix(sequence.size());
  }
  return text;
}

}  // namespace

std::vector<int64_t> tokens_of_text(std::string_view text) {
  std::vector<int64_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

Result<std::vector<int64_t>> parse_tokens(std::string_view list, int64_t vocabulary) {
  std::vector<int64_t> tokens;
  const char *at = list.data(), *const end = at + list.size();
  while (true) {
    int64_t token = -1;
    const auto [after, fault] = std::from_chars(at, end, token);
    if (fault != std::errc() || token < 0 || token >= vocabulary ||
        (after != end && *after != ',')) {
      return error(Code::kInvalidArgument,
                   "--tokens must be numbers from 0 to {}, as 1,2,3, but {} was given",
                   vocabulary - 1, list);
    }
    tokens.push_back(token);
    if (after == end) return tokens;
    at = after + 1;
  }
}

std::string token_list(std::span<const int64_t> tokens) {
  std::string list;
  for (const int64_t token : tokens) {
    list += (list.empty() ? "" : ",") + std::to_string(token);
  }
  return list;
}

std::string visible_text(std::string_view bytes) { return readable(bytes, /*quoted=*/false); }

std::string quoted_text(std::string_view bytes) {
  return "\"" + readable(bytes, /*quoted=*/true) + "\"";
}

std::string shown_tokens(std::span<const int64_t> tokens, int64_t vocabulary, bool quoted) {
  if (vocabulary != kBytesVocabulary) return token_list(tokens);
  std::string bytes;
  for (const int64_t token : tokens) bytes += static_cast<char>(token);
  return quoted ? quoted_text(bytes) : visible_text(bytes);
}

}  // namespace elixir
