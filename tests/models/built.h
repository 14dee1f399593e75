#pragma once

#include "base/throw_error.h"
#include "models/decoder.h"

namespace elixir {

inline std::shared_ptr<Decoder> built(const planner::TransformerConfig& config,
                                      const DecoderOptions& options = {}) {
  return value_or_throw(build_decoder(config, options));
}

}  // namespace elixir
