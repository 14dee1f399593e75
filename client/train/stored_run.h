#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/load_plan.h"
#include "checkpoint/stored_folder.h"
#include "client/exchange/exchange.h"
#include "client/plan/run_plan.h"
#include "client/plan/save_options.h"
#include "client/train/module_parameters.h"

namespace elixir {

// What a run is to be loaded into.
struct RunToLoad {
  std::vector<checkpoints::WantedParameter> parameters;  // in the order of the plan's places
  std::map<std::string, std::vector<int64_t>> rest;      // what lies in no chunk, and its sizes
  bool states = true;
  uint32_t rank = 0;
  std::vector<std::string> copies = {};  // LoadPlan's, which open_run() finds
};

// A folder, held against a model: names, shapes and types fit.
struct StoredRun {
  RunToLoad of;
  checkpoints::StoredFolder folder;
  checkpoints::LoadPlan plan;
  LoadReport report;
};
// Throws kBadInput, with the folder and what does not fit, before a tensor is read.
StoredRun open_run(const std::string& folder, RunToLoad of);

// In what follows, elixird and who plans pass over these: names of the rest, and of copies.
std::vector<std::string> ignored_in(const RunToLoad& of);

// What the folder has of that which lies in no chunk, by name, in the types it has them in; on the
// CPU. Throws kBadInput for bytes that are not those that were written.
std::map<std::string, at::Tensor> read_rest(const StoredRun& run);

// This rank's shards of the chunks placed on the GPU become what the folder holds. Reads with so
// many threads, and holds a chunk's image, or some small ones'.
void load_device_chunks(const StoredRun& run, const RunPlan& plan, Exchange& exchange,
                        uint32_t threads);

}  // namespace elixir
