#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/estimate/quantised.h"

namespace elixir::planner {

// A model's parameters as its files list them, in the order of their bytes (shard by shard). Files
// do not say which parameters are shared, so `shared` is never set.
using StoredModel = SortedTensors;

// Reads a model's safetensors headers, never the tensors themselves. `path` is a .safetensors file
// or a model's folder. It may also be a model.safetensors.index.json (any name that ends in .json)
// with its shards beside it.
// Returns kBadInput with the file and the fault: the file cannot be read, is no ordinary file, or
// has no parameters at all. Other faults are a header or an index that checkpoint/safetensors.h
// rejects, and a tensor that its shard does not have.
Result<StoredModel> read_stored_model(const std::string& path);

// Parses the JSON of one header. Its tensors lie in the `data_bytes` that follow it.
Result<StoredModel> parse_safetensors_header(std::string_view header, uint64_t data_bytes);

}  // namespace elixir::planner
