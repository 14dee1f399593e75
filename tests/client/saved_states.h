#pragma once

// Tests of checkpoints compare these values: the bits of masters and moments.

#include <xxhash.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "client/elixir.h"
#include "optim_cpu/formats.h"

namespace elixir::test {

// The master as a BF16 run keeps it: a tie of BF16 gets its last bit (optim_cpu/formats.h).
inline at::Tensor master_in_bf16(const at::Tensor& master) {
  at::Tensor kept = master.clone();
  float* const values = kept.mutable_data_ptr<float>();
  for (int64_t i = 0; i < kept.numel(); ++i) {
    const optim::SplitBf16 halves = optim::split_bf16(values[i]);
    values[i] = optim::join_bf16(halves.param, halves.low);
  }
  return kept;
}

// A hash over names, counts, masters and moments.
inline uint64_t xxh64_of(const std::map<std::string, ParameterState>& states,
                         bool in_bf16 = false) {
  XXH64_state_t* const hash = XXH64_createState();
  XXH64_reset(hash, 0);
  for (const auto& [name, state] : states) {
    XXH64_update(hash, name.data(), name.size());
    XXH64_update(hash, &state.step, sizeof state.step);
    const at::Tensor master = in_bf16 ? master_in_bf16(state.master) : state.master;
    for (const at::Tensor* tensor : {&master, &state.exp_avg, &state.exp_avg_sq}) {
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
