#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

// The longest file that is read whole.
inline constexpr uint64_t kMaxTextFileBytes = uint64_t{256} << 20;

// kBadInput, with the path and the system's reason: it cannot be read, is a folder, or is longer
// than kMaxTextFileBytes.
Result<std::string> read_text_file(const std::string& path);

// The same of a folder that others may have filled: kBadInput also where it is no ordinary file, a
// pipe for instance, at which nobody waits.
Result<std::string> read_ordinary_file(const std::string& path);

// The number that a file of the kernel's begins with ("4194304", "307200K"); empty where it begins
// with none ("max") or cannot be read.
std::optional<uint64_t> read_number(const std::string& path);

// Replaces the file. kBadInput as above.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace elixir
