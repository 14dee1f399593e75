#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "client/elixir.h"
#include "client/plan/chunk_plan.h"

namespace elixir {

struct ModuleParameter : ParameterSize {
  at::Tensor tensor;   // the module's own handle: replacing its data replaces the module's
  uint32_t group = 0;  // of hyperparameters
  at::ScalarType built_as = at::kFloat;
  bool built_contiguous = true;
};

// Who gives parameters their values. From a folder: a module on the meta device will do.
enum class ValuesFrom : uint8_t { kModule, kFolder };

// The parameters to train, in the order of registration, each once (a tied one under its first
// name), but those without elements, which are in no chunk. Throws elixir::Error for one that is
// not dense, of a type that chunks_take() refuses, not on the CPU, not a leaf, another optimizer's,
// made in InferenceMode, or of another type than the first.
std::vector<ModuleParameter> trainable_parameters(const ModelTensors& model,
                                                  ValuesFrom values = ValuesFrom::kModule);

// The parameters that do not require gradients and have a type that chunks take: they go into
// chunks as well, without gradients or states. Those of other types stay as they are, in no chunk.
// Throws elixir::Error, with the name, for one whose elements are not its memory alone (sparse,
// quantised, nested, a tensor class of its own), and for one that chunks would take from the CPU
// and that lies on another device.
std::vector<ModuleParameter> frozen_parameters(const ModelTensors& model,
                                               ValuesFrom values = ValuesFrom::kModule);

// A model, and what of its parameters options.leave_out names, which is asked once for each.
struct ModelParts {
  ModelTensors kept;
  std::vector<NamedTensor> left_out;
};
ModelParts parts_of(const ModelTensors& model, const Options& options);

// Gives the parameters of groups[i] the group i + 1. Throws kInvalidArgument for more groups than
// there can be, and for a parameter that is in two of them or not to be trained.
void assign_groups(std::vector<ModuleParameter>& parameters, const std::vector<ParamGroup>& groups);

// Puts the parameters into the plan's order, frozen ones last. Throws kInvalidArgument where the
// plan is of another model: it names a parameter that one of them lacks.
void order_by(std::vector<ModuleParameter>& parameters, const planner::Plan& plan);

std::vector<ParameterSize> sizes_of(const std::vector<ModuleParameter>& parameters);

// Throws kInvalidArgument, naming both, where a parameter shares elements with another tensor of
// the module that is not the same one: tied by set_data, or a view.
void refuse_shared_memory(const ModelTensors& model);

// The model's tensors that are in no chunk: what is left out, parameters that cannot be in one,
// buffers; each once, under its first name.
std::vector<NamedTensor> rest_of(const ModelParts& model,
                                 const std::vector<ModuleParameter>& in_chunks);

// The rest, and its values on the CPU: those `stored` under its name, else its own. Of the types
// that chunks take, parameters (without elements) are cast to the compute type, and buffers to
// theirs, if that is given. Everything else keeps its type.
struct MovedTensor {
  std::string name;
  at::Tensor tensor, values;
};
struct RestTypes {
  at::ScalarType parameters;
  std::optional<ComputeType> buffers;
};
std::vector<MovedTensor> values_of_the_rest(const ModelParts& model,
                                            const std::vector<ModuleParameter>& in_chunks,
                                            const RestTypes& types,
                                            const std::map<std::string, at::Tensor>& stored = {});

// The tensors get their values, on the device. All or none.
void move_to(at::Device device, const std::vector<MovedTensor>& rest);

// In the log: what is not trained, was built in another type than chunks have, and so has another
// one now, and takes other bytes.
void say_other_frozen_types(const std::vector<ModuleParameter>& parameters, at::ScalarType now);

}  // namespace elixir
