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
  std::vector<std::string> copies = {};  // LoadPlan's, which open_run() finds
};

// A folder that was compared with a model: names, shapes and types fit.
struct StoredRun {
  RunToLoad of;
  checkpoints::StoredFolder folder;
  checkpoints::LoadPlan plan;
  LoadReport report;
};
// Throws kBadInput, with the folder and what does not fit, before a tensor is read.
StoredRun open_run(const std::string& folder, RunToLoad of);

// The names that loads in elixird and load plans ignore: those of the rest, and of copies.
std::vector<std::string> ignored_in(const RunToLoad& of);

// The folder's tensors that lie in no chunk, by name, in their stored types, on the CPU. Throws
// kBadInput if bytes differ from those that were written.
std::map<std::string, at::Tensor> read_rest(const StoredRun& run);

// Loads this rank's shards of the chunks placed on the GPU from the folder. Reads with so many
// threads, and holds the image of one chunk, or of some small ones.
void load_device_chunks(const StoredRun& run, const RunPlan& plan, Exchange& exchange,
                        uint32_t threads);

}  // namespace elixir
