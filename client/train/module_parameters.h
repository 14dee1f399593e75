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
  uint32_t group = 0;  // its group of hyperparameters
  at::ScalarType built_as = at::kFloat;
  bool built_contiguous = true;
};

// The source of the parameters' values. With kFolder the module may be on the meta device.
enum class ValuesFrom : uint8_t { kModule, kFolder };

// The parameters to train, in the order of registration, each once (a tied one under its first
// name). It leaves out parameters without elements, because they are in no chunk. Throws
// elixir::Error for a parameter that is not dense, not on the CPU or not a leaf. It also throws for
// one that another optimizer has, that was made in InferenceMode, that has a type that
// chunks_take() rejects, or that has another type than the first.
std::vector<ModuleParameter> trainable_parameters(const ModelTensors& model,
                                                  ValuesFrom values = ValuesFrom::kModule);

// The parameters that do not require gradients and have a type that chunks take: they go into
// chunks as well, without gradients or states. Parameters of other types stay as they are, in no
// chunk. Throws elixir::Error, with the name, for a parameter whose elements are not just its
// memory (sparse, quantised, nested, a tensor class of its own). It also throws for one that chunks
// would take from the CPU, but that lies on another device.
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
// of the module. Such tensors were tied by set_data, or one is a view.
void refuse_shared_memory(const ModelTensors& model);

// The model's tensors that are in no chunk: left-out parameters, parameters that cannot be in one,
// and buffers. Each comes once, under its first name.
std::vector<NamedTensor> rest_of(const ModelParts& model,
                                 const std::vector<ModuleParameter>& in_chunks);

// The tensors of rest_of(), each with its values on the CPU. They come from `stored`, if it has the
// name, or else from the tensor itself. A tensor whose type chunks take is cast: a parameter
// (without elements) to types.parameters, a buffer to types.buffers, if that is given. Everything
// else keeps its type.
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

// Logs frozen parameters that were built in another type than that of chunks. Their type and size
// have changed.
void say_other_frozen_types(const std::vector<ModuleParameter>& parameters, at::ScalarType now);

}  // namespace elixir
