#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace elixir::planner {

// Reads the fields of one object of an untrusted config.json. Keeps the first error, and the names
// of the fields that nothing has asked for.
class ConfigFields {
 public:
  // `where` stands before names of fields, such as "rope_scaling.". `object` must outlive the
  // reader.
  explicit ConfigFields(const nlohmann::json& object, std::string where = "");

  const Status& status() const { return status_; }
  // Keeps only the first error. An OK status changes nothing.
  void fail(Status status);

  // Whether the field is there. null counts for has(), but not for given().
  bool has(const char* field) { return find(field) != nullptr; }
  bool given(const char* field);

  // A whole number from 1 to `most`. 0 if it is missing or wrong.
  int64_t size(const char* field, int64_t most);
  int64_t size(const char* field, int64_t most, int64_t missing);
  // A whole number, -2^31 to 2^31; 0 if it is missing or wrong.
  int64_t whole(const char* field);
  // A finite number of 0 or more.
  double number(const char* field, double missing);
  // A finite number above 0; an error if it is missing.
  double positive(const char* field);
  double positive(const char* field, double missing);
  bool flag(const char* field, bool missing);
  // "" for another type.
  std::string text(const char* field);
  // Null if it is missing. An error if it is of another type.
  const nlohmann::json* object(const char* field);
  const nlohmann::json* list(const char* field);

  // Fails if the flag has the other value: that variant of the family has other parameters.
  void require_flag(const char* field, bool wanted);
  // Fails if the field has a value other than these: models/ computes nothing else.
  void one_of(const char* field, std::initializer_list<nlohmann::json> known);
  // Names fields of this family that change nothing here, so that they do not count as unused.
  void known(std::initializer_list<const char*> fields);

  // Takes over the error and the unused fields of an object within this one.
  void adopt(const ConfigFields& inner);

  // Names of the fields that nothing asked for and that could change what is computed.
  std::vector<std::string> unused() const;

  // The name, in quotes, as messages show it.
  std::string quoted(const char* field) const { return "'" + where_ + field + "'"; }

 private:
  const nlohmann::json* find(const char* field);

  const nlohmann::json& object_;
  const std::string where_;
  Status status_;
  std::set<std::string, std::less<>> asked_;
  std::vector<std::string> unused_within_;
};

// Advice, in messages, for a model that is not known.
inline constexpr const char* kCountedBy =
    "elixirctl estimate counts others with --safetensors or --params";

// A kBadInput status about config.json.
template <typename... Args>
Status bad_config(fmt::format_string<Args...> text, Args&&... args) {
  return Status(Code::kBadInput, "config.json: " + fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
Status not_computed(fmt::format_string<Args...> text, Args&&... args) {
  return bad_config(
      "{}: Elixir's models do not compute this, so the weights would mean something else",
      fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace elixir::planner
