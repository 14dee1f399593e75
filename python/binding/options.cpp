#include "python/binding/options.h"

#include <pybind11/stl.h>

#include <functional>
#include <map>
#include <memory>
#include <unordered_set>

namespace elixir::python {
namespace {

namespace py = pybind11;

template <typename Choice>
using Names = std::vector<std::pair<const char*, Choice>>;

const Names<ComputeType> kTypes = {
    {"fp32", ComputeType::kFp32}, {"bf16", ComputeType::kBf16}, {"fp16", ComputeType::kFp16}};
const Names<UpdateMode> kUpdates = {{"deferred", UpdateMode::kDeferred},
                                    {"early", UpdateMode::kEarly},
                                    {"immediate", UpdateMode::kImmediate},
                                    {"sync", UpdateMode::kSync}};
const Names<shm::Exchange> kExchanges = {{"host", shm::Exchange::kHost},
                                         {"collective", shm::Exchange::kCollective}};

template <typename Choice>
Choice choice_of(const std::string& field, const std::string& name, const Names<Choice>& names) {
  std::string known;
  for (const auto& [its, choice] : names) {
    if (name == its) return choice;
    known += (known.empty() ? "'" : ", '") + std::string(its) + "'";
  }
  throw py::value_error(field + "='" + name + "' is not one of " + known);
}

Activations activations_in(const std::string& field, const std::string& text) {
  try {
    return activations_of(text);
  } catch (const Error& failure) {
    throw py::value_error(field + "=" + failure.what());
  }
}

using Setter = std::function<void(Options& options, const std::string& name, py::handle value)>;

template <typename Value>
Setter set(Value Options::*field) {
  return [field](Options& options, const std::string&, py::handle value) {
    options.*field = value.cast<Value>();
  };
}

template <typename Value>
Setter set(Value LayoutOptions::*field) {
  return [field](Options& options, const std::string&, py::handle value) {
    options.layout.*field = value.cast<Value>();
  };
}

const std::map<std::string, Setter>& setters() {
  static const auto* const all = new std::map<std::string, Setter>{
      {"device", set(&Options::device)},
      {"dtype",
       [](Options& options, const std::string& name, py::handle value) {
         options.dtype = choice_of(name, value.cast<std::string>(), kTypes);
       }},
      {"update",
       [](Options& options, const std::string& name, py::handle value) {
         options.update = choice_of(name, value.cast<std::string>(), kUpdates);
       }},
      {"exchange",
       [](Options& options, const std::string& name, py::handle value) {
         options.layout.exchange = choice_of(name, value.cast<std::string>(), kExchanges);
       }},
      {"activations",
       [](Options& options, const std::string& name, py::handle value) {
         options.activations = activations_in(name, value.cast<std::string>());
       }},
      {"clip_norm", set(&Options::clip_norm)},
      {"grad_norm", set(&Options::grad_norm)},
      {"keep_gradients", set(&Options::keep_gradients)},
      {"broadcast_buffers", set(&Options::broadcast_buffers)},
      {"accumulate", set(&Options::accumulate)},
      {"chunk_numel", set(&LayoutOptions::chunk_numel)},
      {"rcache_blocks", set(&LayoutOptions::rcache_blocks)},
      {"long_blocks", set(&LayoutOptions::long_blocks)},
      {"gpu_state_share", set(&LayoutOptions::gpu_state_share)},
      {"spare_slots", set(&LayoutOptions::spare_slots)},
      {"swing_stride", set(&LayoutOptions::swing_stride)},
      {"load_from", set(&Options::load_from)},
      {"load_states", set(&Options::load_states)},
      {"plan", [](Options& options, const std::string&,
                  py::handle value) { options.plan = value.cast<const HeldPlan&>().plan; }},
      {"program_bytes", set(&Options::program_bytes)},
      {"device_memory_bytes", set(&Options::device_memory_bytes)},
      {"workers", set(&Options::workers)},
      {"load_threads", set(&Options::load_threads)},
      {"log_plan", set(&Options::log_plan)},
      {"trace", set(&Options::trace)},
      {"runtime_dir", set(&Options::runtime_dir)},
      {"ranks_timeout_s", set(&Options::ranks_timeout_s)},
      {"leave_out",
       [](Options& options, const std::string&, py::handle value) {
         auto names = value.cast<std::unordered_set<std::string>>();
         options.leave_out = [names = std::move(names)](const std::string& name,
                                                        const at::Tensor&) {
           return names.contains(name);
         };
       }},
  };
  return *all;
}

}  // namespace

std::vector<NamedTensor> named(const Named& tensors) {
  std::vector<NamedTensor> result;
  for (const auto& [name, tensor] : tensors) result.push_back({name, tensor});
  return result;
}

Options options_from(const py::dict& given) {
  Options options;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const auto found = setters().find(name);
    if (found == setters().end()) {
      throw py::type_error("there is no option '" + name + "'");
    }
    if (value.is_none()) continue;
    try {
      found->second(options, name, value);
    } catch (const py::cast_error&) {
      throw py::type_error(name + "=" + py::repr(value).cast<std::string>() +
                           " is not of the option's type");
    }
  }
  return options;
}

}  // namespace elixir::python
