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

// The source of the parameters' values. With kFolder the module may be on the meta device.
enum class ValuesFrom : uint8_t { kModule, kFolder };

// The parameters to train, in the order of registration, each once (a tied one under its first
// name). Parameters without elements are left out, because they are in no chunk. Throws
// elixir::Error for one that is not dense, of a type that chunks_take() rejects, not on the CPU,
// not a leaf, another optimizer's, made in InferenceMode, or of another type than the first.
std::vector<ModuleParameter> trainable_parameters(const ModelTensors& model,
                                                  ValuesFrom values = ValuesFrom::kModule);

// The parameters that do not require gradients and have a type that chunks take: they go into
// chunks as well, without gradients or states. Those of other types stay as they are, in no chunk.
// Throws elixir::Error, with the name, for one whose elements are not its memory alone (sparse,
// quantised, nested, a tensor class of its own), and for one that chunks would take from the CPU
// and that lies on another device.
std::vector<ModuleParameter> frozen_parameters(const ModelTensors& model,
                                               ValuesFrom values = ValuesFrom::kModule);

// A model, and its parameters that options.leave_out names. leave_out is called once for each.
struct ModelParts {
  ModelTensors kept;
  std::vector<NamedTensor> left_out;
};
ModelParts parts_of(const ModelTensors& model, const Options& options);

// Gives the parameters of groups[i] the group i + 1. Throws kInvalidArgument for too many groups,
// and for a parameter that is in two groups or is not trained.
void assign_groups(std::vector<ModuleParameter>& parameters, const std::vector<ParamGroup>& groups);

// Puts the parameters into the plan's order, frozen ones last. Throws kInvalidArgument if the plan
// is of another model, and names a parameter that is missing in one of them.
void order_by(std::vector<ModuleParameter>& parameters, const planner::Plan& plan);

std::vector<ParameterSize> sizes_of(const std::vector<ModuleParameter>& parameters);

// Throws kInvalidArgument, and names both, if a parameter shares elements with a different tensor
// of the module: tied by set_data, or a view.
void refuse_shared_memory(const ModelTensors& model);

// The model's tensors that are in no chunk: left-out parameters, parameters that cannot be in one,
// and buffers; each once, under its first name.
std::vector<NamedTensor> rest_of(const ModelParts& model,
                                 const std::vector<ModuleParameter>& in_chunks);

// The rest, and its values on the CPU: those that `stored` has under its name, else its own. Of the
// types that chunks take, parameters (without elements) are cast to the compute type, and buffers
// to theirs, if that is given. Everything else keeps its type.
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

// Gives the tensors their values on the device, all or none.
void move_to(at::Device device, const std::vector<MovedTensor>& rest);

// Logs parameters that are not trained and were built in another type than that of chunks. They
// have another type and another size now.
void say_other_frozen_types(const std::vector<ModuleParameter>& parameters, at::ScalarType now);

}  // namespace elixir
