#pragma once

// Shared code of libFuzzer's targets. A target aborts (ELIXIR_CHECK) when a decoder breaks its
// promise.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "base/status.h"

namespace elixir::fuzz {

// The fuzzer's bytes, taken from the front. After their end everything is 0, so each prefix of an
// input is an input.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(data, size) {}

  bool empty() const { return bytes_.empty(); }
  template <typename T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const size_t size = bytes_.size() < sizeof value ? bytes_.size() : sizeof value;
    if (size > 0) std::memcpy(&value, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return value;
  }
  uint32_t below(uint32_t limit) { return take<uint8_t>() % limit; }
  bool flag() { return (take<uint8_t>() & 1) != 0; }

  std::span<const std::byte> rest() const { return std::as_bytes(bytes_); }
  std::string_view rest_text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::span<const uint8_t> bytes_;
};

// Whether the decoder accepted the input. Each rejection must blame the sender, with the code
// `refusal`.
template <typename T>
bool accepted(const Result<T>& decoded, Code refusal = Code::kBadInput) {
  if (decoded.ok()) return true;
  ELIXIR_CHECK(decoded.status().code() == refusal, "{}", decoded.status().message());
  return false;
}

// Checks that an accepted value is written and read again as equal text. to_json() is found by T.
template <typename T>
void check_rereads(const T& value, Result<T> (*read)(std::string_view)) {
  const std::string text = to_json(value);
  const Result<T> again = read(text);
  ELIXIR_CHECK(again.ok(), "{} in what was written: {}", again.status().message(), text);
  ELIXIR_CHECK(to_json(*again) == text, "another value was read than was written: {}", text);
}

}  // namespace elixir::fuzz
