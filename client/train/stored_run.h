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

// The run that a folder is loaded into.
struct RunToLoad {
  std::vector<checkpoints::WantedParameter> parameters;  // in the order of the plan's places
  std::map<std::string, std::vector<int64_t>> rest;      // tensors in no chunk, and their sizes
  bool states = true;
  uint32_t rank = 0;
  std::vector<std::string> copies = {};  // LoadPlan's copies; open_run() sets them
};

// A folder whose names, shapes and types fit the model.
struct StoredRun {
  RunToLoad of;
  checkpoints::StoredFolder folder;
  checkpoints::LoadPlan plan;
  LoadReport report;
};
// Throws kBadInput before it reads a tensor, if the folder does not fit. The message names the
// folder and the difference.
StoredRun open_run(const std::string& folder, RunToLoad of);

// The names that load plans and elixird's loads ignore: those of the rest and of copies.
std::vector<std::string> ignored_in(const RunToLoad& of);

// The folder's tensors that lie in no chunk, by name, in their stored types, on the CPU. Throws
// kBadInput if the bytes are not those that were written.
std::map<std::string, at::Tensor> read_rest(const StoredRun& run);

// Loads this rank's shards of the chunks placed on the GPU from the folder. Reads with `threads`
// threads. It holds the image of one chunk, or of a few small ones.
void load_device_chunks(const StoredRun& run, const RunPlan& plan, Exchange& exchange,
                        uint32_t threads);

// The parameters in chunks placed on the GPU, in the compute type. All ranks call it, and get the
// same. REQUIRES: the last step is finished on every rank.
checkpoints::LeftOut values_on_device(Exchange& exchange, const RunPlan& plan);

// All ranks call it. Returns rank 0's status on ranks that have no failure of their own.
Status verdict_of_first(Exchange& exchange, uint32_t ranks, Status own);

}  // namespace elixir
