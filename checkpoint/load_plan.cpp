#include "checkpoint/load_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/nearest.h"
#include "checkpoint/tied_copy.h"
#include "checkpoint/value_check.h"

namespace elixir::checkpoints {
namespace {

using Tensors = std::unordered_map<std::string_view, const StoredTensor*>;
constexpr std::string_view kStatePrefix = "state.";

Tensors by_name(const std::vector<StoredTensor>& tensors) {
  Tensors map;
  for (const StoredTensor& tensor : tensors) map.emplace(tensor.name, &tensor);
  return map;
}

// How names that are wanted become those of the folder: all that begin with `drop` lack it there,
// or all have `add` before them. At most one of the two.
struct Renaming {
  std::string drop = {}, add = {};

  std::string stored(const std::string& wanted) const {
    if (!drop.empty() && wanted.starts_with(drop)) return wanted.substr(drop.size());
    return add + wanted;
  }
  std::string wanted(const std::string& stored) const {
    if (!add.empty()) return stored.starts_with(add) ? stored.substr(add.size()) : stored;
    return drop + stored;
  }
};

// "transformer.": the first part that most names have; "" where they have none.
template <typename List>
std::string common_prefix(const List& list) {
  std::map<std::string_view, size_t> counts;
  for (const auto& named : list) {
    const std::string_view name = named.name;
    const size_t dot = name.find('.');
    if (dot != name.npos) ++counts[name.substr(0, dot + 1)];
  }
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  return most == counts.end() ? std::string() : std::string(most->first);
}

size_t found_with(const Renaming& renaming, std::span<const WantedParameter> wanted,
                  const Tensors& tensors) {
  return static_cast<size_t>(std::count_if(
      wanted.begin(), wanted.end(),
      [&](const auto& parameter) { return tensors.contains(renaming.stored(parameter.name)); }));
}

// The one under which most are found; none where it is no better than another.
Renaming choose_renaming(const StoredFolder& folder, std::span<const WantedParameter> wanted,
                         const Tensors& tensors) {
  Renaming best;
  if (folder.manifest.has_value()) return best;
  size_t found = found_with(best, wanted, tensors);
  for (const Renaming& renaming :
       {Renaming{.drop = common_prefix(wanted)}, Renaming{.add = common_prefix(folder.model)}}) {
    const size_t with = found_with(renaming, wanted, tensors);
    if (with > found) best = renaming, found = with;
  }
  return best;
}

std::string nearest_of(std::string_view name, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(name, names);
  return nearest.empty() ? std::string() : fmt::format("; the nearest is '{:.100}'", nearest);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// One array of a parameter in the folder.
struct Source {
  const StoredTensor* tensor = nullptr;
  uint32_t parameter = 0;
  StateKind kind = StateKind::kParam;
};

class Planner {
 public:
  Planner(const StoredFolder& folder, std::span<const WantedParameter> wanted,
          const LoadChoice& choice)
      : folder_(folder), wanted_(wanted), choice_(choice) {}

  Result<LoadPlan> plan() {
    if (!choice_.states) ELIXIR_RETURN_IF_ERROR(check_has_model(folder_));
    ELIXIR_RETURN_IF_ERROR(match_parameters());
    if (!choice_.allow_rest) ELIXIR_RETURN_IF_ERROR(check_rest());
    const bool has_states =
        choice_.states && folder_.manifest.has_value() && folder_.manifest->optimizer_states;
    if (has_states) ELIXIR_RETURN_IF_ERROR(match_states());
    LoadPlan plan;
    for (const StoredTensor* const tensor : tensor_of_) {
      plan.stored_names.push_back(tensor == nullptr ? "" : tensor->name);
    }
    plan.left_out = static_cast<uint32_t>(wanted_.size() - params_.size());
    plan.copies = copies_;
    plan.has_states = has_states;
    plan.updates = updates(has_states);
    ELIXIR_RETURN_IF_ERROR(cut(params_, &plan.params));
    ELIXIR_RETURN_IF_ERROR(cut(states_, &plan.states));
    for (const auto* pieces : {&plan.params, &plan.states}) {
      for (const LoadPiece& piece : *pieces) plan.bytes += piece.bytes;
    }
    return plan;
  }

 private:
  bool leaves_out() const { return folder_.manifest && folder_.manifest->left_out; }
  Status match_parameters();
  Status missing(const WantedParameter& parameter, const std::string& stored_name) const;
  Status check_parameter(const StoredTensor& tensor, const WantedParameter& wanted) const;
  Status check_rest();
  const StoredTensor* tied_to(const StoredTensor& tensor) const;
  Status match_states();
  Status match_state(uint32_t parameter, StateKind kind, const Tensors& tensors);
  std::vector<uint64_t> updates(bool has_states) const;
  Status cut(std::vector<Source>& sources, std::vector<LoadPiece>* pieces) const;
  Status cut_by_manifest(uint32_t file, std::span<const Source> sources,
                         std::vector<LoadPiece>* pieces) const;
  void cut_freely(uint32_t file, std::span<const Source> sources,
                  std::vector<LoadPiece>* pieces) const;

  const StoredFolder& folder_;
  const std::span<const WantedParameter> wanted_;
  const LoadChoice& choice_;
  Renaming renaming_;
  std::unordered_set<const StoredTensor*> taken_;  // of the model
  std::vector<const StoredTensor*> tensor_of_;     // by wanted parameter; null: left out there
  std::vector<Source> params_, states_;
  std::vector<std::string> copies_;
};

Status Planner::missing(const WantedParameter& parameter, const std::string& stored_name) const {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : folder_.model) names.push_back(tensor.name);
  return error(Code::kBadInput, "{}: it has no tensor '{:.100}', which the model needs{}",
               folder_.path, parameter.name,
               leaves_out() ? "; it was saved without what is not trained (SaveOptions::frozen)"
                            : nearest_of(stored_name, names));
}

Status Planner::check_parameter(const StoredTensor& tensor, const WantedParameter& wanted) const {
  if (tensor.shape != wanted.shape) {
    return error(Code::kBadInput, "{}: its shape is {}, the model's parameter has {}",
                 folder_.place_of(tensor), shape_text(tensor.shape), shape_text(wanted.shape));
  }
  // FP8 has scales beside it, which nobody here applies.
  if (!choice_.any_dtype && (!tensor.dtype->floating || tensor.dtype->bytes == 1)) {
    return error(Code::kBadInput,
                 "{}: its dtype is {}; parameters are read from BF16, F16, F32 and F64",
                 folder_.place_of(tensor), tensor.dtype->name);
  }
  return Status();
}

Status Planner::match_parameters() {
  const Tensors tensors = by_name(folder_.model);
  renaming_ = choose_renaming(folder_, wanted_, tensors);
  for (uint32_t i = 0; i < wanted_.size(); ++i) {
    const std::string name = renaming_.stored(wanted_[i].name);
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      const bool may_lack = !wanted_[i].trained || folder_.holds_states_alone();
      if (!may_lack || !leaves_out()) return missing(wanted_[i], name);
      tensor_of_.push_back(nullptr);
      continue;
    }
    ELIXIR_RETURN_IF_ERROR(check_parameter(*found->second, wanted_[i]));
    if (!taken_.insert(found->second).second) {
      return error(Code::kBadInput, "{}: two parameters of the model would be it",
                   folder_.place_of(*found->second));
    }
    tensor_of_.push_back(found->second);
    params_.push_back({found->second, i, StateKind::kParam});
  }
  return Status();
}

// Where the tensor is an output projection that the model does not have: the token embedding, for
// that is used in its place. Null: it is none.
const StoredTensor* Planner::tied_to(const StoredTensor& tensor) const {
  if (tensor.name != "lm_head.weight" && tensor.name != "embed_out.weight") return nullptr;
  const auto found = std::find_if(params_.begin(), params_.end(), [&](const Source& source) {
    const std::string_view name = wanted_[source.parameter].name;
    return name.ends_with(".embed_tokens.weight") || name.ends_with(".wte.weight") ||
           name.ends_with(".embed_in.weight");
  });
  return found == params_.end() ? nullptr : found->tensor;
}

Status Planner::check_rest() {
  for (const StoredTensor& tensor : folder_.model) {
    const bool buffer =
        tensor.begin == tensor.end || !tensor.dtype->floating || is_known_buffer(tensor);
    if (buffer || taken_.contains(&tensor)) continue;
    const std::string name = renaming_.wanted(tensor.name);
    const auto ignored = [&](const std::string& known) {
      return std::find(choice_.ignored.begin(), choice_.ignored.end(), known) !=
             choice_.ignored.end();
    };
    if (ignored(name) || ignored(tensor.name)) continue;
    if (const StoredTensor* const original = tied_to(tensor)) {
      ELIXIR_RETURN_IF_ERROR(check_tied_copy(folder_, tensor, *original));
      copies_.push_back(tensor.name);
      continue;
    }
    std::vector<std::string> names;
    for (const WantedParameter& wanted : wanted_) names.push_back(wanted.name);
    return error(Code::kBadInput, "{}: the model does not have this parameter{}",
                 folder_.place_of(tensor), nearest_of(name, names));
  }
  return Status();
}

Status Planner::match_state(uint32_t parameter, StateKind kind, const Tensors& tensors) {
  const WantedParameter& wanted = wanted_[parameter];
  const std::string name = fmt::format("{}{}.{}", kStatePrefix, wanted.name, state_name(kind));
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    return error(Code::kBadInput,
                 "{}: no tensor '{:.100}': that parameter was not trained there; freeze it here, "
                 "too, or load the model without states of the optimizer",
                 folder_.path, name);
  }
  const StoredTensor& tensor = *found->second;
  const std::string_view dtype = kind == StateKind::kMasterLow ? "I16" : "F32";
  if (tensor.dtype->name != dtype) {
    return error(Code::kBadInput, "{}: its dtype is {}, {} is needed", folder_.place_of(tensor),
                 tensor.dtype->name, dtype);
  }
  if (tensor.shape != wanted.shape) {
    return error(Code::kBadInput, "{}: its shape is {}, the model's parameter has {}",
                 folder_.place_of(tensor), shape_text(tensor.shape), shape_text(wanted.shape));
  }
  states_.push_back({&tensor, parameter, kind});
  return Status();
}

Status Planner::match_states() {
  const Tensors tensors = by_name(folder_.optimizer);
  const ComputeType type = folder_.manifest->type;
  ELIXIR_RETURN_IF_ERROR(check_update_counts(folder_));
  for (uint32_t i = 0; i < wanted_.size(); ++i) {
    if (!wanted_[i].trained) continue;
    // What completes a master does so for the type that the manifest names.
    const StoredTensor* const param = tensor_of_[i];
    if (param != nullptr && param->dtype != &dtype_of(type)) {
      return error(Code::kBadInput, "{}: its dtype is {}, but {} says that {} was trained",
                   folder_.place_of(*param), param->dtype->name, kManifestName,
                   dtype_of(type).name);
    }
    ELIXIR_RETURN_IF_ERROR(match_state(i, StateKind::kExpAvg, tensors));
    ELIXIR_RETURN_IF_ERROR(match_state(i, StateKind::kExpAvgSq, tensors));
    if (type == ComputeType::kBf16) {
      ELIXIR_RETURN_IF_ERROR(match_state(i, StateKind::kMasterLow, tensors));
    } else if (type == ComputeType::kFp16) {
      ELIXIR_RETURN_IF_ERROR(match_state(i, StateKind::kMaster, tensors));
    }
  }
  return Status();
}

std::vector<uint64_t> Planner::updates(bool has_states) const {
  std::vector<uint64_t> counts(wanted_.size(), 0);
  for (size_t i = 0; has_states && i < wanted_.size(); ++i) {
    if (!wanted_[i].trained) continue;
    const auto own = folder_.manifest->updates_of.find(wanted_[i].name);
    const bool differs = own != folder_.manifest->updates_of.end();
    counts[i] = differs ? own->second : folder_.manifest->updates;
  }
  return counts;
}

// The part of a source's bytes that lies in [begin, end) of its file.
LoadRange range_of(const Source& source, uint64_t begin, uint64_t end) {
  const StoredTensor& tensor = *source.tensor;
  const uint64_t from = std::max(begin, tensor.offset);
  const uint64_t to = std::min(end, tensor.offset + (tensor.end - tensor.begin));
  return {.parameter = source.parameter,
          .kind = source.kind,
          .dtype = tensor.dtype,
          .first = (from - tensor.offset) / tensor.dtype->bytes,
          .numel = (to - from) / tensor.dtype->bytes,
          .at = from - begin};
}

Status Planner::cut_by_manifest(uint32_t file, std::span<const Source> sources,
                                std::vector<LoadPiece>* pieces) const {
  const StoredFile& stored = folder_.files[file];
  uint64_t begin = 0;
  for (const Piece& listed : stored.pieces) {
    const uint64_t end = begin + listed.bytes;
    LoadPiece piece{file, begin, listed.bytes, listed.xxh3, {}};
    while (!sources.empty()) {
      const StoredTensor& tensor = *sources.front().tensor;
      const uint64_t tensor_end = tensor.offset + (tensor.end - tensor.begin);
      if (tensor.offset >= end) break;
      if (tensor_end > end && (end - tensor.offset) % tensor.dtype->bytes != 0) {
        return error(Code::kBadInput, "{}: an element of it lies in two pieces of {}",
                     folder_.place_of(tensor), kManifestName);
      }
      piece.ranges.push_back(range_of(sources.front(), begin, end));
      if (tensor_end > end) break;
      sources = sources.subspan(1);
    }
    // The header is checked as well: by it all was found.
    if (!piece.ranges.empty() || begin < stored.data_begin) pieces->push_back(std::move(piece));
    begin = end;
  }
  return Status();
}

void Planner::cut_freely(uint32_t file, std::span<const Source> sources,
                         std::vector<LoadPiece>* pieces) const {
  LoadPiece piece{.file = file};
  const auto finish = [&] {
    if (piece.bytes > 0) pieces->push_back(std::move(piece));
    piece = {.file = file};
  };
  for (const Source& source : sources) {
    const StoredTensor& tensor = *source.tensor;
    uint64_t at = tensor.offset;
    const uint64_t end = at + (tensor.end - tensor.begin);
    while (at < end) {
      const uint64_t room = kMaxPieceBytes - piece.bytes;
      const uint64_t bytes = std::min(end - at, room - room % tensor.dtype->bytes);
      if (bytes == 0 || piece.offset + piece.bytes != at) {
        finish();
        piece.offset = at;
        continue;
      }
      piece.ranges.push_back(range_of(source, at, at + bytes));
      piece.ranges.back().at = piece.bytes;
      piece.bytes += bytes;
      at += bytes;
    }
  }
  finish();
}

Status Planner::cut(std::vector<Source>& sources, std::vector<LoadPiece>* pieces) const {
  std::erase_if(sources, [](const Source& s) { return s.tensor->begin == s.tensor->end; });
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    return std::pair(a.tensor->file, a.tensor->offset) <
           std::pair(b.tensor->file, b.tensor->offset);
  });
  for (auto first = sources.begin(); first != sources.end();) {
    const uint32_t file = first->tensor->file;
    const auto last =
        std::find_if(first, sources.end(), [&](const Source& s) { return s.tensor->file != file; });
    if (folder_.manifest.has_value()) {
      ELIXIR_RETURN_IF_ERROR(cut_by_manifest(file, {first, last}, pieces));
    } else {
      cut_freely(file, {first, last}, pieces);
    }
    first = last;
  }
  return Status();
}

}  // namespace

const char* state_name(StateKind kind) {
  switch (kind) {
    case StateKind::kExpAvg:
      return "exp_avg";
    case StateKind::kExpAvgSq:
      return "exp_avg_sq";
    case StateKind::kMasterLow:
      return "master_low";
    case StateKind::kMaster:
      return "master";
    case StateKind::kParam:
      break;
  }
  return "";
}

Result<LoadPlan> plan_load(const StoredFolder& folder, std::span<const WantedParameter> wanted,
                           const LoadChoice& choice) {
  return Planner(folder, wanted, choice).plan();
}

}  // namespace elixir::checkpoints
