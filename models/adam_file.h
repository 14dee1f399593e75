#pragma once

// Adam's states in a file that torch.save() wrote, by the names of parameters. Read are
//
//   torch.optim.AdamW.state_dict():   {"state": {number: {...}}, "param_groups": [...]}
//   the same by name, as FSDP has it: {"state": {name: {...}}, "param_groups": [...]}
//   flattened, as DCP has it:         {"state.NAME.exp_avg": ..., "param_groups.NAME.lr": ...}
//
// and a dict that has one of them as "optimizer" or "optimizer_state_dict".

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
  bool counted = false;  // there was one
  uint32_t group = 0;
  const pickle::Value* exp_avg = nullptr;  // of the file; null: there were no steps
  const pickle::Value* exp_avg_sq = nullptr;
};

struct AdamFile {
  std::vector<AdamGroup> groups;
  std::map<std::string, AdamStates> parameters;
};

// What the parameters of a file that numbers them are called.
struct ParameterNames {
  std::vector<std::string> names = {};
  bool given = false;  // in the order of the numbers; else in that of the model
};

// Names without what wrappers put into them: "module.", "_orig_mod.", "_fsdp_wrapped_module.",
// "_checkpoint_wrapped_module.". kBadInput: it holds no states of Adam, or in other ways than
// these, or without a count of steps, or of another rule (amsgrad, maximize), or groups' options
// are another optimizer's: Adam's have betas, and amsgrad or whether there is bias correction.
// Where they do not say whether weight decay is decoupled, as before torch 2.7, it is.
// kInvalidArgument: it numbers its parameters, and nobody says what they are called. The values are
// in `file` still.
Result<AdamFile> adam_of(const TorchFile& file, const ParameterNames& names);

}  // namespace elixir
