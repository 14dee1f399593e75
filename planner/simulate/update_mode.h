#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace elixir {

// When a chunk may be updated, after all gradients of it or of the step are in:
//   kDeferred   of the step: the update runs behind the next forward pass, in the order of next
//               use, each operator waiting for its own chunks
//   kImmediate  of the chunk, under backward; without clipping or a dynamic loss scale, which need
//               all gradients first
//   kSync       as kDeferred, and step() waits until all chunks are updated
enum class UpdateMode : uint8_t { kDeferred, kImmediate, kSync };
inline constexpr EnumName<UpdateMode> kUpdateModeNames[] = {{"deferred", UpdateMode::kDeferred},
                                                            {"immediate", UpdateMode::kImmediate},
                                                            {"sync", UpdateMode::kSync}};

}  // namespace elixir
