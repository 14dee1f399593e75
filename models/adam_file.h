#pragma once

// Reads Adam's states by parameter name from a file that torch.save() wrote. It knows these forms:
//
//   torch.optim.AdamW.state_dict():   {"state": {number: {...}}, "param_groups": [...]}
//   by parameter name, from FSDP:     {"state": {name: {...}}, "param_groups": [...]}
//   flattened, from DCP:              {"state.NAME.exp_avg": ..., "param_groups.NAME.lr": ...}
//
// and a dict that holds one of them as "optimizer" or "optimizer_state_dict".

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/update_rule.h"
#include "models/torch_file.h"

namespace elixir {

struct AdamGroup {
  double lr = 1e-3, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool decoupled = true;  // AdamW

  bool operator==(const AdamGroup&) const = default;
};

struct AdamStates {
  uint64_t step = 0;
  bool counted = false;  // the file has a step count
  uint32_t group = 0;
  const pickle::Value* exp_avg = nullptr;  // in the file; null: no step was made
  const pickle::Value* exp_avg_sq = nullptr;
};

struct AdamFile {
  std::vector<AdamGroup> groups;
  std::map<std::string, AdamStates> parameters;
};

// Names for the parameters of a file that only numbers them.
struct ParameterNames {
  std::vector<std::string> names = {};
  bool given = false;  // the user gave them, in the order of the numbers; else in the model's order
};

// Reads the states. Removes the parts of names that wrappers add: "module.", "_orig_mod.",
// "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.". Weight decay is decoupled unless the file
// says otherwise (files from before torch 2.7 do not say). The values stay in `file`, so it must
// outlive the result.
//
// kBadInput: the file holds no states of Adam in a form above, or no step count, or states of
// another rule (amsgrad, maximize). Also if a group's options are not Adam's: Adam has betas, and
// either amsgrad or an option for bias correction. kInvalidArgument: the file numbers its
// parameters, and there are no names for them.
Result<AdamFile> adam_of(const TorchFile& file, const ParameterNames& names);

}  // namespace elixir
