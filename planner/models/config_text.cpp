#include "planner/models/config_text.h"

#include <algorithm>
#include <string>

#include "base/printable.h"

namespace elixir::planner {
namespace {

// Finds where the parser stopped, and takes no memory for what it read.
class FaultFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  size_t position = 0;  // from 1 on

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    position = at;
    return false;
  }
};

bool is_of_number(char c) {
  return std::string_view("+-.0123456789eE").find(c) != std::string_view::npos;
}

}  // namespace

Status fault_of_config(std::string_view text) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    return error(Code::kBadInput,
                 "config.json: it begins with the byte order mark of UTF-16; convert it, as with "
                 "'iconv -f UTF-16 -t UTF-8'");
  }
  FaultFinder finder;
  nlohmann::json::sax_parse(text.begin(), text.end(), &finder);
  size_t at = std::min(finder.position == 0 ? 0 : finder.position - 1, text.size());
  if (at == text.size()) {
    return error(Code::kBadInput,
                 "config.json: not JSON: it ends at byte {} and is incomplete; it must be the "
                 "config.json of a Hugging Face model",
                 at);
  }
  // A number that is too large is read to its end, and -Infinity to its second character.
  while (at > 0 && is_of_number(text[at - 1])) --at;
  constexpr size_t kShown = 12;
  const std::string_view rest = text.substr(at, kShown);
  return error(Code::kBadInput, "config.json: not JSON at byte {}, where '{}' stands; {}", at,
               printable(rest),
               is_of_number(rest[0]) || rest.starts_with("NaN") || rest.starts_with("Infinity")
                   ? "write a finite number"
                   : "it must be the config.json of a Hugging Face model");
}

}  // namespace elixir::planner
