#pragma once

// Reads JSON that anyone may have written: manifests, messages of trainers, models' config.json. It
// is parsed within limits, and each value is read with its range. The first failure is kept, and
// everything after it reads as nothing.

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace elixir::checkpoints {

struct JsonLimits {
  int depth = 8;              // nesting of lists and objects
  size_t values = 4'000'000;  // a value takes about 100 bytes of memory, a name as many again
};

// kBadInput if the text is beyond a limit. Looks only at the characters and keeps nothing. The
// parser takes memory for each bracket before anybody can object, and code that walks through
// nested values takes stack for each level.
Status check_json_limits(std::string_view text, const JsonLimits& limits = {});

// kBadInput: not JSON, or beyond a limit.
template <typename Json = nlohmann::json>
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {}) {
  ELIXIR_RETURN_IF_ERROR(check_json_limits(text, limits));
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return error(Code::kBadInput, "not JSON");
  return value;
}

// Writes JSON with text that need not be UTF-8: other bytes become U+FFFD.
inline std::string dump_json(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class JsonReader {
 public:
  using Json = nlohmann::json;

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  void fail(std::string what) {
    if (status_.ok()) status_ = Status(Code::kBadInput, std::move(what));
  }

  // A field of an object. A missing field is a failure and reads as null.
  const Json& field(const Json& object, const char* name) {
    static const Json none;
    if (!object.is_object()) {
      fail(fmt::format("'{}' is looked for where no object is", name));
      return none;
    }
    const auto found = object.find(name);
    if (found != object.end()) return *found;
    fail(fmt::format("'{}' is missing", name));
    return none;
  }
  // Returns an empty list or object after a failure.
  const Json& list(const Json& object, const char* name) {
    static const Json none = Json::array();
    const Json& value = field(object, name);
    if (value.is_array()) return value;
    fail(fmt::format("'{}' is not a list", name));
    return none;
  }
  const Json& object(const Json& outer, const char* name) {
    static const Json none = Json::object();
    const Json& value = field(outer, name);
    if (value.is_object()) return value;
    fail(fmt::format("'{}' is not an object", name));
    return none;
  }

  // A whole number from `least` to `most`.
  uint64_t whole(const Json& value, const char* name, uint64_t least, uint64_t most) {
    const uint64_t number = value.is_number_unsigned() ? value.get<uint64_t>() : 0;
    if (value.is_number_unsigned() && number >= least && number <= most) return number;
    fail(fmt::format("'{}' is not a whole number from {} to {}", name, least, most));
    return least;
  }
  // A finite number of any sign.
  double real(const Json& value, const char* name) {
    const double number = value.is_number() ? value.get<double>() : 0;
    if (value.is_number() && std::isfinite(number)) return number;
    fail(fmt::format("'{}' is not a number", name));
    return 0;
  }
  bool boolean(const Json& value, const char* name) {
    if (value.is_boolean()) return value.get<bool>();
    fail(fmt::format("'{}' is neither true nor false", name));
    return false;
  }
  const std::string& text(const Json& value, const char* name, size_t bytes_most) {
    static const std::string none;
    if (value.is_string() && value.get_ref<const std::string&>().size() <= bytes_most) {
      return value.get_ref<const std::string&>();
    }
    fail(fmt::format("'{}' is not a text of at most {} bytes", name, bytes_most));
    return none;
  }

 private:
  Status status_;
};

}  // namespace elixir::checkpoints
