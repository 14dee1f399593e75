#include "checkpoint/json_values.h"

namespace elixir::checkpoints {

Status check_json_limits(std::string_view text, const JsonLimits& limits) {
  size_t values = 0;
  int depth = 0;
  bool in_string = false, in_word = false;  // a word: a number, true, false, null
  for (size_t at = 0; at < text.size() && depth <= limits.depth; ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      in_string = c != '"';
      continue;
    }
    const bool word_before = std::exchange(in_word, false);
    switch (c) {
      case '[':
      case '{':
        ++depth;
        ++values;
        break;
      case ']':
      case '}':
        --depth;
        break;
      case '"':
        in_string = true;
        ++values;
        break;
      case ',':
      case ':':
      case ' ':
      case '\t':
      case '\r':
      case '\n':
        break;
      default:
        in_word = true;
        if (!word_before) ++values;
    }
    if (values > limits.values) break;
  }
  if (depth > limits.depth) return error(Code::kBadInput, "JSON deeper than {}", limits.depth);
  if (values <= limits.values) return Status();
  return error(Code::kBadInput, "JSON of more than {} values", limits.values);
}

}  // namespace elixir::checkpoints
