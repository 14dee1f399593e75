#include "base/printable.h"

#include <algorithm>
#include <cstddef>

namespace elixir {
namespace {

unsigned char byte_at(std::string_view text, size_t at) {
  return static_cast<unsigned char>(text[at]);
}

size_t length_by(unsigned char first) {
  if (first < 0xc2 || first > 0xf4) return 1;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// Bytes of the UTF-8 character that begins there; 1 where it is none.
size_t length_at(std::string_view text, size_t at) {
  const size_t length = length_by(byte_at(text, at));
  if (length > text.size() - at) return 1;
  const std::string_view rest = text.substr(at + 1, length - 1);
  const bool whole = std::all_of(rest.begin(), rest.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
  });
  return whole ? length : 1;
}

bool is_control(std::string_view character) {
  const unsigned char first = byte_at(character, 0);
  if (character.size() == 1) return first < 0x20 || (first >= 0x7f && first < 0xa0);
  return character.size() == 2 && first == 0xc2 && byte_at(character, 1) < 0xa0;
}

}  // namespace

std::string printable(std::string_view text, bool lines) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, length_at(text, at));
    const bool stays = !is_control(character) || (lines && character == "\n");
    shown += stays ? character : std::string_view("?");
    at += character.size();
  }
  return shown;
}

}  // namespace elixir
