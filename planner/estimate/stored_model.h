#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/estimate/quantised.h"

namespace elixir::planner {

// The parameters of a model as its files list them, in the order in which their bytes lie (shard by
// shard). `shared` is never set: a file does not say it.
using StoredModel = SortedTensors;

// Reads the header of a .safetensors file; or, where the name ends in .json, a
// model.safetensors.index.json and the headers of the shards beside it; or the headers of a model's
// folder. Never the tensors themselves. kBadInput, with the file and what is wrong: it cannot be
// read, is no ordinary file, a header or an index that checkpoint/safetensors.h refuses, a tensor
// that its shard lacks, no parameters at all.
Result<StoredModel> read_stored_model(const std::string& path);

// The JSON of one header, whose tensors lie in the `data_bytes` that follow it.
Result<StoredModel> parse_safetensors_header(std::string_view header, uint64_t data_bytes);

}  // namespace elixir::planner
