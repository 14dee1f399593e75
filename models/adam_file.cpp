#include "models/adam_file.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace elixir {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr double kMostSteps = 1e15;

Status bad(const std::string& what) { return error(Code::kBadInput, "{}", what); }

std::string bare_name(std::string_view text) {
  std::string name(text);
  for (const std::string_view wrapper :
       {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "module."}) {
    for (size_t at = 0; (at = name.find(wrapper, at)) != std::string::npos;) {
      if (at == 0 || name[at - 1] == '.') {
        name.erase(at, wrapper.size());
      } else {
        ++at;
      }
    }
  }
  return name;
}

// What a group's options say of the rule.
struct RuleSigns {
  bool betas = false, adam = false;
  std::optional<uint64_t> step = {};  // apex counts by group
};

// Reads the forms of the header's list into one AdamFile.
class AdamReader {
 public:
  AdamReader(const TorchFile& file, const ParameterNames& names)
      : file_(file), document_(file.document()), names_(names) {}

  Result<AdamFile> read();

 private:
  Status read_nested(const Value& root, const Value& state, const Value& groups);
  Status read_flat(const Value& root);
  Status read_group(const Value& group);
  Status take_parameter(const Value& id, uint32_t group, const std::string* name);
  Status take_states(const Value& entry, AdamStates& states);
  Status take_field(std::string_view field, const Value& value, AdamStates& states);
  Status take_option(std::string_view name, const Value& value, AdamGroup& group,
                     RuleSigns& signs) const;
  Status take_sign(std::string_view name, const Value& value, RuleSigns& signs) const;
  Result<uint64_t> count_of(const Value& value) const;
  Status find_names(const Value& root, size_t count, bool one_group);
  Status add_name(std::string name, AdamStates states);
  // None: it is no number.
  std::optional<double> number_of(const Value& value) const;

  const TorchFile& file_;
  const pickle::Document& document_;
  const ParameterNames& names_;
  std::vector<std::string> of_number_;        // by position in the groups
  std::map<int64_t, const Value*> numbered_;  // states by id
  std::map<std::string_view, const Value*> named_;
  size_t position_ = 0;
  std::optional<uint64_t> group_step_;  // of the group that is read
  AdamFile out_;
};

std::optional<double> AdamReader::number_of(const Value& value) const {
  if (value.kind == Kind::kFloat) return value.number;
  if (value.kind == Kind::kInt || value.kind == Kind::kBool) {
    return static_cast<double>(value.integer);
  }
  if (value.kind != Kind::kTensor) return std::nullopt;
  const Result<at::Tensor> read = file_.read(value);
  if (!read.ok() || read->numel() != 1) return std::nullopt;
  return *read->data_ptr<float>();
}

Result<uint64_t> AdamReader::count_of(const Value& value) const {
  const std::optional<double> number = number_of(value);
  if (!number || !(*number >= 0 && *number < kMostSteps)) return bad("a step is not a number");
  return static_cast<uint64_t>(*number);
}

// Of a rule that Elixir has: torch's own have amsgrad, apex's and older ones bias correction.
// RAdam, NAdam, Lion have neither; LAMB keeps the same states, and more options.
Status AdamReader::take_sign(std::string_view name, const Value& value, RuleSigns& signs) const {
  const bool set = (value.kind == Kind::kBool || value.kind == Kind::kInt) && value.integer != 0;
  if ((name == "amsgrad" || name == "maximize") && set) {
    return bad(fmt::format("it was trained with {}, which Elixir's Adam does not do", name));
  }
  const bool corrects = name == "bias_correction" || name == "correct_bias";
  if (corrects && !set)
    return bad("it was trained without bias correction, which Elixir's Adam has");
  if (name == "momentum_decay" || name == "grad_averaging" || name == "max_coeff") {
    return bad(fmt::format("its groups have '{}', so it is another optimizer's than Adam", name));
  }
  if (name == "betas") signs.betas = true;
  if (name == "amsgrad" || corrects) signs.adam = true;
  if (name != "step") return Status();
  const Result<uint64_t> step = count_of(value);
  if (!step.ok()) return step.status();
  signs.step = *step;
  return Status();
}

Status check_rule(const RuleSigns& signs) {
  if (signs.betas && signs.adam) return Status();
  return bad(
      fmt::format("its groups have no '{}', which torch's Adam and AdamW have: the states belong "
                  "to another optimizer, and training cannot continue with them",
                  signs.betas ? "amsgrad" : "betas"));
}

Status AdamReader::take_option(std::string_view name, const Value& value, AdamGroup& group,
                               RuleSigns& signs) const {
  ELIXIR_RETURN_IF_ERROR(take_sign(name, value, signs));
  if (name == "betas" && (value.kind == Kind::kTuple || value.kind == Kind::kList) &&
      value.items.size() == 2) {
    const std::optional<double> first = number_of(document_.at(value.items[0]));
    const std::optional<double> second = number_of(document_.at(value.items[1]));
    if (!first || !second) return bad("its betas are not numbers");
    group.beta1 = *first;
    group.beta2 = *second;
    return Status();
  }
  double* const place = name == "lr"             ? &group.lr
                        : name == "weight_decay" ? &group.weight_decay
                        : name == "eps"          ? &group.eps
                                                 : nullptr;
  if (name == "decoupled_weight_decay") group.decoupled = value.integer != 0;
  if (place == nullptr) return Status();
  const std::optional<double> number = number_of(value);
  if (!number || !std::isfinite(*number)) return bad(fmt::format("its {} is not a number", name));
  *place = *number;
  return Status();
}

Status AdamReader::take_field(std::string_view field, const Value& value, AdamStates& states) {
  if (field == "step") {
    const Result<uint64_t> step = count_of(value);
    if (!step.ok()) return step.status();
    states.step = *step;
    states.counted = true;
    return Status();
  }
  if (field != "exp_avg" && field != "exp_avg_sq") {
    return bad(fmt::format("a state '{}', which Adam does not have", field.substr(0, 40)));
  }
  if (value.kind != Kind::kTensor) {
    return bad(fmt::format(
        "{} is {}{} where a tensor belongs: gather a sharded optimizer's states "
        "first (torch's get_optimizer_state_dict with full_state_dict=True)",
        field, pickle::kind_name(value.kind), value.text.empty() ? "" : " of a class of its own"));
  }
  (field == "exp_avg" ? states.exp_avg : states.exp_avg_sq) = &value;
  return Status();
}

Status check_states(const AdamStates& states) {
  if ((states.exp_avg == nullptr) != (states.exp_avg_sq == nullptr)) {
    return bad("exp_avg without exp_avg_sq, or the other way round");
  }
  if (states.exp_avg != nullptr && !states.counted) {
    return bad(
        "its count of steps ('step') is missing, by which Adam corrects for its first steps");
  }
  if (states.exp_avg == nullptr && states.step != 0) {
    return bad(fmt::format("{} steps without exp_avg and exp_avg_sq", states.step));
  }
  return Status();
}

Status AdamReader::take_states(const Value& entry, AdamStates& states) {
  if (entry.kind != Kind::kDict) return bad("states that are not a dict");
  for (size_t i = 0; i < entry.items.size(); i += 2) {
    const Value& field = document_.at(entry.items[i]);
    ELIXIR_RETURN_IF_ERROR(take_field(field.text, document_.at(entry.items[i + 1]), states));
  }
  if (!states.counted && group_step_) {
    states.step = *group_step_;
    states.counted = true;
  }
  return check_states(states);
}

Status AdamReader::add_name(std::string name, AdamStates states) {
  if (!out_.parameters.emplace(name, states).second) {
    return bad(fmt::format("two states of '{}'", name));
  }
  return Status();
}

// `name`: of those that are numbered.
Status AdamReader::take_parameter(const Value& id, uint32_t group, const std::string* name) {
  AdamStates states{.group = group};
  const Value* entry = nullptr;
  std::string shown;
  if (id.kind == Kind::kInt) {
    const auto found = numbered_.find(id.integer);
    if (found != numbered_.end()) entry = found->second;
    if (name == nullptr) {
      if (position_ >= of_number_.size()) return bad("a parameter without a name");
      name = &of_number_[position_];
    }
    shown = *name;
  } else {
    const auto found = named_.find(id.text);
    if (found != named_.end()) entry = found->second;
    shown = id.text;
  }
  ++position_;
  if (entry != nullptr) {
    const Status taken = take_states(*entry, states);
    if (!taken.ok()) return bad(fmt::format("of '{}': {}", shown, taken.message()));
  }
  return add_name(bare_name(shown), states);
}

Status AdamReader::read_group(const Value& value) {
  if (value.kind != Kind::kDict) return bad("a group that is not a dict");
  AdamGroup group;
  RuleSigns signs;
  for (size_t i = 0; i < value.items.size(); i += 2) {
    ELIXIR_RETURN_IF_ERROR(take_option(document_.at(value.items[i]).text,
                                       document_.at(value.items[i + 1]), group, signs));
  }
  ELIXIR_RETURN_IF_ERROR(check_rule(signs));
  group_step_ = signs.step;
  out_.groups.push_back(group);
  const Value* const params = document_.find(value, "params");
  if (params == nullptr || (params->kind != Kind::kList && params->kind != Kind::kTuple)) {
    return bad("a group without parameters");
  }
  const Value* const names = document_.find(value, "param_names");
  const bool named = names != nullptr && names->items.size() == params->items.size();
  for (size_t i = 0; i < params->items.size(); ++i) {
    const Value& id = document_.at(params->items[i]);
    if (id.kind != Kind::kInt && id.kind != Kind::kString) return bad("a parameter without a name");
    const std::string name(named ? document_.at(names->items[i]).text : std::string_view());
    ELIXIR_RETURN_IF_ERROR(
        take_parameter(id, static_cast<uint32_t>(out_.groups.size() - 1), named ? &name : nullptr));
  }
  return Status();
}

// Where the file numbers parameters and does not name them itself.
Status AdamReader::find_names(const Value& root, size_t count, bool one_group) {
  const Value* const names = document_.find(root, "param_names");
  if (names != nullptr && !names_.given && names->items.size() == count) {
    for (const uint32_t item : names->items) of_number_.emplace_back(document_.at(item).text);
    return Status();
  }
  if (names_.names.empty() || (!names_.given && !one_group)) {
    return error(Code::kInvalidArgument,
                 "it numbers its parameters{}: say what they are called with --names FILE, a name "
                 "a line, in the order in which the optimizer was given them",
                 names_.names.empty() ? "" : " group by group, so not in the model's order");
  }
  if (names_.names.size() != count) {
    return error(Code::kInvalidArgument, "it has {} parameters, and {} names are {}", count,
                 names_.names.size(), names_.given ? "given" : "in the model's config.json");
  }
  of_number_ = names_.names;
  return Status();
}

Status AdamReader::read_nested(const Value& root, const Value& state, const Value& groups) {
  for (size_t i = 0; i < state.items.size(); i += 2) {
    const Value& key = document_.at(state.items[i]);
    const Value* const entry = &document_.at(state.items[i + 1]);
    if (key.kind == Kind::kInt) numbered_[key.integer] = entry;
    if (key.kind == Kind::kString) named_[key.text] = entry;
  }
  size_t numbers = 0;
  bool nameless = false;
  for (const uint32_t item : groups.items) {
    const Value& group = document_.at(item);
    const Value* const params = document_.find(group, "params");
    if (params == nullptr || params->items.empty()) continue;
    if (document_.at(params->items[0]).kind == Kind::kInt) {
      numbers += params->items.size();
      nameless = nameless || document_.find(group, "param_names") == nullptr;
    }
  }
  if (nameless) {
    ELIXIR_RETURN_IF_ERROR(find_names(root, numbers, groups.items.size() == 1));
  }
  for (const uint32_t item : groups.items) ELIXIR_RETURN_IF_ERROR(read_group(document_.at(item)));
  return Status();
}

// "state.NAME.FIELD" and "param_groups.NAME.OPTION"; groups are those of equal options. There may
// be none at all, as where tensors alone were kept.
Status AdamReader::read_flat(const Value& root) {
  constexpr std::string_view kState = "state.", kGroup = "param_groups.";
  std::map<std::string, std::pair<AdamGroup, RuleSigns>> options;
  for (size_t i = 0; i < root.items.size(); i += 2) {
    const std::string_view key = document_.at(root.items[i]).text;
    const Value& value = document_.at(root.items[i + 1]);
    const size_t dot = key.rfind('.');
    if (key.starts_with(kState) && dot > kState.size()) {
      const std::string name = bare_name(key.substr(kState.size(), dot - kState.size()));
      const Status taken = take_field(key.substr(dot + 1), value, out_.parameters[name]);
      if (!taken.ok()) return bad(fmt::format("of '{}': {}", name, taken.message()));
    } else if (key.starts_with(kGroup) && dot > kGroup.size()) {
      const std::string name = bare_name(key.substr(kGroup.size(), dot - kGroup.size()));
      auto& [group, signs] = options[name];
      out_.parameters[name];  // without states it has made no step
      ELIXIR_RETURN_IF_ERROR(take_option(key.substr(dot + 1), value, group, signs));
    }
  }
  for (const auto& [name, of] : options) ELIXIR_RETURN_IF_ERROR(check_rule(of.second));
  for (auto& [name, states] : out_.parameters) {
    const Status whole = check_states(states);
    if (!whole.ok()) return bad(fmt::format("of '{}': {}", name, whole.message()));
    const auto own = options.find(name);
    if (!options.empty() && own == options.end()) {
      return bad(fmt::format("it has states of '{}', and no 'param_groups.{}.lr'", name, name));
    }
    const AdamGroup group = own == options.end() ? AdamGroup() : own->second.first;
    const auto found = std::find(out_.groups.begin(), out_.groups.end(), group);
    states.group = static_cast<uint32_t>(found - out_.groups.begin());
    if (found == out_.groups.end()) out_.groups.push_back(group);
  }
  return Status();
}

Result<AdamFile> AdamReader::read() {
  const Value* root = &document_.root();
  for (const char* const name : {"optimizer", "optimizer_state_dict"}) {
    const Value* const inner = document_.find(*root, name);
    if (inner != nullptr && inner->kind == Kind::kDict) root = inner;
  }
  const Value* const state = document_.find(*root, "state");
  const Value* const groups = document_.find(*root, "param_groups");
  Status read;
  if (state != nullptr && groups != nullptr && state->kind == Kind::kDict &&
      groups->kind == Kind::kList) {
    read = read_nested(*root, *state, *groups);
  } else if (root->kind == Kind::kDict) {
    read = read_flat(*root);
  }
  if (read.ok() && out_.parameters.empty()) {
    read = bad(fmt::format("it holds {} without states of Adam's ('state' and 'param_groups')",
                           pickle::kind_name(root->kind)));
  }
  if (!read.ok()) return read;
  return std::move(out_);
}

}  // namespace

Result<AdamFile> adam_of(const TorchFile& file, const ParameterNames& names) {
  return AdamReader(file, names).read();
}

}  // namespace elixir
