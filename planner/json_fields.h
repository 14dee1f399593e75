#pragma once

// Reads the fields of a JSON object that anyone may have written. The first that is missing or of
// another type is what the status says; nothing throws.

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "planner/shown_json.h"

namespace elixir::planner {

class JsonFields {
 public:
  using Json = nlohmann::json;

  // `where` stands before the field's name in messages. `status` outlives this.
  JsonFields(const Json& object, std::string where, Status* status)
      : object_(object), where_(std::move(where)), status_(status) {
    if (!object.is_object()) fail(where_.empty() ? "no JSON object" : where_ + " is no object");
  }

  template <typename T>
  void required(const char* name, T* value) {
    if (!status_->ok()) return;
    if (!object_.contains(name)) return fail(fmt::format("{}{} is missing", where_, name));
    read(object_[name], fmt::format("{}{}", where_, name), value);
  }
  template <typename T>
  void optional(const char* name, T* value) {
    if (status_->ok() && object_.contains(name) && !object_[name].is_null()) required(name, value);
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
    if (status_->ok()) *status_ = Status(Code::kBadInput, what);
  }
  Status* status() const { return status_; }

 private:
  static constexpr double kLargestExact = 9007199254740992.0;  // 2^53

  template <typename T>
  void read(const Json& json, const std::string& name, T* value) {
    if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return fail(name + " is not true or false");
      *value = json.get<bool>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return fail(name + " is no text");
      *value = json.get<std::string>();
    } else if constexpr (std::is_integral_v<T>) {
      read_whole(json, name, value);
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!json.is_number()) return fail(name + " is no number");
      *value = json.get<T>();
    } else {
      read_list(json, name, value);
    }
  }

  template <typename T>
  void read_whole(const Json& json, const std::string& name, T* value) {
    if (json.is_number_unsigned() && json.get<uint64_t>() <= std::numeric_limits<T>::max()) {
      *value = static_cast<T>(json.get<uint64_t>());
      return;
    }
    const double most = std::min(kLargestExact, static_cast<double>(std::numeric_limits<T>::max()));
    const double number = json.is_number() ? json.get<double>() : -1;
    if (!(number >= 0 && number <= most) || number != std::floor(number)) {
      return fail(
          fmt::format("{} = {}: it must be a whole number from 0 to {}", name, shown(json), most));
    }
    *value = static_cast<T>(number);
  }

  template <typename T>
  void read_list(const Json& json, const std::string& name, std::vector<T>* values) {
    if (!json.is_array()) return fail(name + " is no list");
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
