#pragma once

// What tests of checkpoints compare: the bits of masters and moments.

#include <xxhash.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "client/elixir.h"

namespace elixir::test {

// Over names, counts, masters and moments.
inline uint64_t xxh64_of(const std::map<std::string, ParameterState>& states) {
  XXH64_state_t* const hash = XXH64_createState();
  XXH64_reset(hash, 0);
  for (const auto& [name, state] : states) {
    XXH64_update(hash, name.data(), name.size());
    XXH64_update(hash, &state.step, sizeof state.step);
    for (const at::Tensor* tensor : {&state.master, &state.exp_avg, &state.exp_avg_sq}) {
      XXH64_update(hash, tensor->const_data_ptr(), tensor->nbytes());
    }
  }
  const uint64_t digest = XXH64_digest(hash);
  XXH64_freeState(hash);
  return digest;
}

inline bool is_checkpoint(const std::string& folder) {
  return std::filesystem::is_regular_file(folder + "/elixir.json");
}

}  // namespace elixir::test
