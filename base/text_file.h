#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

// The longest file that is read whole.
inline constexpr uint64_t kMaxTextFileBytes = uint64_t{256} << 20;

// kBadInput, with the path and the system's reason, if the file cannot be read, is a folder, or is
// longer than kMaxTextFileBytes.
Result<std::string> read_text_file(const std::string& path);

// Like read_text_file(), for a folder that others may have filled. It also returns kBadInput for
// anything but an ordinary file, such as a pipe, and never waits for one.
Result<std::string> read_ordinary_file(const std::string& path);

// The number at the start of a kernel's file ("4194304", "307200K"). Empty if it starts with none
// ("max") or cannot be read.
std::optional<uint64_t> read_number(const std::string& path);

// Replaces the file. kBadInput as above.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace elixir
