#pragma once

// Reads the fields of a JSON object from an untrusted file. The status names the first few fields
// that are missing or have another type. Nothing throws.

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace elixir::planner {

// A value of an untrusted file, short enough for a message. It does not descend into lists and
// objects, which may be nested as deeply as the file is long.
inline std::string shown(const nlohmann::json& value) {
  constexpr size_t kLongest = 40;
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

class JsonFields {
 public:
  using Json = nlohmann::json;

  // `where` stands before the field's name in messages. `status` must outlive this object.
  JsonFields(const Json& object, std::string where, Status* status)
      : object_(object), where_(std::move(where)), status_(status) {
    if (!object.is_object()) fail(where_.empty() ? "no JSON object" : where_ + " is not an object");
  }

  // null counts as missing.
  template <typename T>
  void required(const char* name, T* value) {
    if (const Json* const field = find(name)) return read(*field, where_ + name, value);
    fail(where_ + name + " is missing");
  }
  template <typename T>
  void optional(const char* name, T* value) {
    if (const Json* const field = find(name)) read(*field, where_ + name, value);
  }
  // Null after a failure.
  const Json* array(const char* name) {
    if (!status_->ok()) return nullptr;
    const auto found = object_.find(name);
    if (found != object_.end() && found->is_array()) return &*found;
    fail(fmt::format("{}{} is {}", where_, name, found == object_.end() ? "missing" : "no list"));
    return nullptr;
  }

  void fail(const std::string& what) {
    constexpr size_t kLongest = 1000;
    const std::string before = status_->ok() ? "" : status_->message() + "; ";
    if (before.size() < kLongest) *status_ = Status(Code::kBadInput, before + what);
  }
  Status* status() const { return status_; }

 private:
  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void wrong(const std::string& name, const Json& value, const char* needed) {
    fail(fmt::format("{} is {}, {}", name, shown(value), needed));
  }

  template <typename T>
  void read(const Json& json, const std::string& name, T* value) {
    if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return wrong(name, json, "true or false is needed");
      *value = json.get<bool>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return wrong(name, json, "a string is needed");
      *value = json.get<std::string>();
    } else if constexpr (std::is_integral_v<T>) {
      read_whole(json, name, value);
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!json.is_number()) return wrong(name, json, "a number is needed");
      *value = json.get<T>();
    } else {
      read_list(json, name, value);
    }
  }

  // Also accepts 4e10, as some programs write large whole numbers.
  template <typename T>
  void read_whole(const Json& json, const std::string& name, T* value) {
    constexpr const char* kTooLarge = "it is too large";
    if (json.is_number_unsigned()) {
      const auto exact = json.get<uint64_t>();
      if (exact > std::numeric_limits<T>::max()) return wrong(name, json, kTooLarge);
      *value = static_cast<T>(exact);
      return;
    }
    const double real = json.is_number() ? json.get<double>() : 0.5;
    if (real != std::floor(real)) return wrong(name, json, "a whole number is needed");
    if (real < 0) return wrong(name, json, "it cannot be negative");
    if (real >= std::ldexp(1.0, std::numeric_limits<T>::digits))
      return wrong(name, json, kTooLarge);
    *value = static_cast<T>(real);
  }

  template <typename T>
  void read_list(const Json& json, const std::string& name, std::vector<T>* values) {
    if (!json.is_array()) return wrong(name, json, "a list is needed");
    values->resize(json.size());
    for (size_t i = 0; i < json.size() && status_->ok(); ++i) {
      read(json[i], fmt::format("{}[{}]", name, i), &(*values)[i]);
    }
  }

  const Json& object_;
  const std::string where_;
  Status* const status_;
};

}  // namespace elixir::planner
