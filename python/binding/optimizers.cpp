// The optimizers, as python/elixir/_optimizer.py uses them.

#include <elixir/elixir.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/binding/bind.h"
#include "python/binding/options.h"

namespace py = pybind11;

namespace elixir::python {
namespace {

// lr, weight_decay, betas, eps.
using Hyper = std::tuple<double, double, std::pair<double, double>, double>;

ParamGroup group_of(const Hyper& hyper, std::vector<at::Tensor> parameters = {}) {
  const auto& [lr, weight_decay, betas, eps] = hyper;
  return {std::move(parameters), lr, weight_decay, betas, eps};
}

std::vector<ParamGroup> groups_of(
    const std::vector<std::pair<std::vector<at::Tensor>, Hyper>>& given) {
  std::vector<ParamGroup> groups;
  for (const auto& [parameters, hyper] : given) groups.push_back(group_of(hyper, parameters));
  return groups;
}

template <typename Its, typename Hyperparameters>
std::unique_ptr<Its> make(const Named& parameters, const Named& buffers, const Hyper& hyper,
                          const std::vector<std::pair<std::vector<at::Tensor>, Hyper>>& groups,
                          const py::dict& options) {
  const Options given = options_from(options);
  const ModelTensors model{named(parameters), named(buffers)};
  const auto& [lr, weight_decay, betas, eps] = hyper;
  const Hyperparameters all{lr, betas, eps, weight_decay};
  const py::gil_scoped_release others_run;
  return std::make_unique<Its>(model, all, given, groups_of(groups));
}

py::dict dict_of(const ParameterState& state) {
  py::dict made;
  made["step"] = state.step;
  made["exp_avg"] = state.exp_avg;
  made["exp_avg_sq"] = state.exp_avg_sq;
  made["master"] = state.master;
  return made;
}

py::dict dict_of(const LoadReport& report) {
  py::dict made;
  made["path"] = report.path;
  made["step"] = report.step;
  made["ranks"] = report.ranks;
  made["has_states"] = report.has_states;
  made["program"] = report.program;
  made["rank_state"] = py::bytes(report.rank_state);
  return made;
}

py::dict dict_of(const SaveReport& report) {
  py::dict made;
  made["path"] = report.path;
  made["step"] = report.step;
  made["bytes"] = report.bytes;
  made["stall_s"] = report.stall_s;
  made["write_s"] = report.write_s;
  made["not_finite"] = report.not_finite;
  return made;
}

const char* leg_name(planner::Leg leg) {
  switch (leg) {
    case planner::Leg::kCompute:
      return "compute";
    case planner::Leg::kH2d:
      return "link up";
    case planner::Leg::kD2h:
      return "link down";
    case planner::Leg::kG2g:
      return "collectives";
    case planner::Leg::kUpdate:
      return "update";
  }
  return "";
}

py::dict dict_of(const StepStats& stats) {
  py::dict made;
  made["step"] = stats.step;
  made["gathers"] = stats.gathers;
  made["hits"] = stats.hits;
  made["evictions"] = stats.evictions;
  made["h2d_bytes"] = stats.h2d_bytes;
  made["d2h_bytes"] = stats.d2h_bytes;
  made["d2d_bytes"] = stats.d2d_bytes;
  made["update_numel_per_s"] = stats.update_numel_per_s;
  made["recomputed_regions"] = stats.recomputed_regions;
  made["activation_d2h_bytes"] = stats.activation_d2h_bytes;
  made["activation_h2d_bytes"] = stats.activation_h2d_bytes;
  const Roofline& times = stats.roofline;
  made["step_ms"] = times.step_ms;
  made["compute_ms"] = times.compute_ms;
  made["exposed_ms"] = times.exposed_ms;
  made["update_ms"] = times.update_ms;
  made["binding"] = leg_name(times.binding);
  return made;
}

py::dict dict_of(const PlanSummary& plan) {
  py::dict made;
  made["parameters"] = plan.parameters_numel;
  made["frozen_parameters"] = plan.frozen_numel;
  made["chunk_numel"] = plan.chunk_numel;
  made["chunks"] = plan.n_chunks;
  made["gpu_chunks"] = plan.n_gpu_chunks;
  made["swing_chunks"] = plan.n_swing_chunks;
  made["frozen_chunks"] = plan.n_frozen_chunks;
  made["rcache_blocks"] = plan.rcache_blocks;
  made["long_blocks"] = plan.long_blocks;
  made["spare_slots"] = plan.spare_slots;
  made["exchange"] = plan.exchange == shm::Exchange::kHost ? "host" : "collective";
  made["device"] = plan.device;
  made["device_bytes"] = plan.device_bytes;
  made["model_state_bytes"] = plan.model_state_bytes;
  made["pageable_bytes"] = plan.pageable_bytes;
  made["predicted_step_s"] = plan.predicted_step_s;
  made["attach_s"] = plan.attach_seconds;
  made["load_s"] = plan.load_seconds;
  return made;
}

SaveOptions save_options(bool states, bool model, bool frozen,
                         const std::vector<std::pair<std::string, py::bytes>>& files,
                         const std::string& program, const py::bytes& rank_state) {
  SaveOptions options;
  options.optimizer_states = states;
  options.model = model;
  options.frozen = frozen;
  for (const auto& [name, bytes] : files) options.files.emplace_back(name, std::string(bytes));
  options.program = program;
  options.rank_state = std::string(rank_state);
  return options;
}

template <typename Its>
void bind_optimizer(py::class_<Its>& its) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  its.def(
         "step", [](Its& self, std::optional<double> loss) { self.step(loss); },
         py::arg("loss") = py::none(), unlocked)
      .def("zero_grad", &Its::zero_grad, unlocked)
      .def(
          "set_group",
          [](Its& self, uint32_t group, const Hyper& hyper) {
            self.set_param_group(group, group_of(hyper));
          },
          unlocked)
      .def(
          "add_group",
          [](Its& self, std::vector<at::Tensor> parameters, const Hyper& hyper) {
            return self.add_param_group(group_of(hyper, std::move(parameters)));
          },
          unlocked)
      .def("set_clip_norm", &Its::set_clip_norm, unlocked)
      .def("gradient", &Its::gradient, unlocked)
      .def("value", &Its::value, unlocked)
      .def("state",
           [](Its& self, const at::Tensor& parameter) {
             ParameterState state;
             {
               const py::gil_scoped_release others_run;
               state = self.state(parameter);
             }
             return dict_of(state);
           })
      .def(
          "set_parameters",
          [](Its& self, const Named& values) { self.set_parameters(named(values)); }, unlocked)
      .def("release", &Its::release, unlocked);
}

template <typename Its>
void bind_reports(py::class_<Its>& its) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  its.def(
         "outcome",
         [](Its& self, std::optional<uint32_t> step) {
           StepOutcome outcome;
           {
             const py::gil_scoped_release others_run;
             outcome = step ? self.outcome(*step) : self.outcome();
           }
           return py::make_tuple(outcome.step, outcome.mean_loss, outcome.grad_norm,
                                 outcome.skipped);
         },
         py::arg("step") = py::none())
      .def("synchronize", &Its::synchronize, unlocked)
      .def("last_step", [](const Its& self) { return self.stats().step; })
      .def("steps", &Its::steps)
      .def("stats", [](const Its& self) { return dict_of(self.stats()); })
      .def("plan_summary", [](const Its& self) { return dict_of(self.plan()); })
      .def("weights_xxh64", &Its::weights_xxh64, unlocked)
      .def("rank", [](const Its& self) { return self.environment().rank; })
      .def("world_size", [](const Its& self) { return self.environment().world_size; })
      .def("device", [](const Its& self) { return self.device(); })
      .def(
          "save",
          [](Its& self, const std::string& folder, bool states, bool model, bool frozen,
             const std::vector<std::pair<std::string, py::bytes>>& files,
             const std::string& program, const py::bytes& rank_state) {
            const SaveOptions options =
                save_options(states, model, frozen, files, program, rank_state);
            const py::gil_scoped_release others_run;
            return self.save(folder, options);
          },
          py::arg("folder"), py::arg("states"), py::arg("model"), py::arg("frozen"),
          py::arg("files"), py::arg("program"), py::arg("rank_state"))
      .def("load",
           [](Its& self, const std::string& folder, bool states) {
             LoadReport report;
             {
               const py::gil_scoped_release others_run;
               report = self.load(folder, states);
             }
             return dict_of(report);
           })
      .def("loaded",
           [](const Its& self) -> py::object {
             if (!self.loaded()) return py::none();
             return dict_of(*self.loaded());
           })
      .def("state_dict", [](Its& self) {
        std::map<std::string, ParameterState> states;
        {
          const py::gil_scoped_release others_run;
          states = self.state_dict();
        }
        py::dict made;
        for (const auto& [name, state] : states) made[name.c_str()] = dict_of(state);
        return made;
      });
}

}  // namespace

void bind_optimizers(py::module_& module) {
  py::class_<HeldPlan>(module, "Plan").def("json", [](const HeldPlan& held) {
    return plan_json(*held.plan);
  });
  py::class_<Saving>(module, "Saving")
      .def("done", &Saving::done)
      .def("progress", &Saving::progress)
      .def("wait", [](Saving& saving) {
        SaveReport report;
        {
          const py::gil_scoped_release others_run;
          report = saving.wait();
        }
        return dict_of(report);
      });
  py::class_<AdamW> adamw(module, "AdamW");
  adamw.def(py::init(&make<AdamW, AdamWOptions>));
  bind_optimizer(adamw);
  bind_reports(adamw);
  py::class_<Adam> adam(module, "Adam");
  adam.def(py::init(&make<Adam, AdamOptions>));
  bind_optimizer(adam);
  bind_reports(adam);
}

}  // namespace elixir::python
