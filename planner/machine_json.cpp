#include "planner/machine_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/nearest.h"
#include "planner/shown_json.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::json;

enum class Need { kRequired, kOptional };

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : between) + part;
  return out;
}

// Reads fields of one object and remembers all that is wrong with them.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  void number(const char* name, Need need, double* value) {
    const Json* const field = find(name, need);
    if (field == nullptr) return;
    if (!field->is_number()) return wrong(name, *field, "a number is needed");
    *value = field->get<double>();
  }

  // Also as 4e10, which is how some programs write large whole numbers.
  template <typename Whole>
  void whole(const char* name, Whole* value) {
    const Json* const field = find(name, Need::kRequired);
    if (field == nullptr) return;
    if (field->is_number_unsigned()) {
      const auto exact = field->get<uint64_t>();
      if (exact > std::numeric_limits<Whole>::max()) return wrong(name, *field, kTooLarge);
      *value = static_cast<Whole>(exact);
      return;
    }
    const double real = field->is_number() ? field->get<double>() : 0.5;
    if (real != std::floor(real)) return wrong(name, *field, "a whole number is needed");
    if (real < 0) return wrong(name, *field, "it cannot be negative");
    if (real >= std::ldexp(1.0, std::numeric_limits<Whole>::digits)) {
      return wrong(name, *field, kTooLarge);
    }
    *value = static_cast<Whole>(real);
  }

  void text(const char* name, std::string* value) {
    const Json* const field = find(name, Need::kOptional);
    if (field == nullptr) return;
    if (!field->is_string()) return wrong(name, *field, "a string is needed");
    *value = field->get<std::string>();
  }

  Status status() const {
    std::vector<std::string> problems = wrong_;
    if (!missing_.empty()) problems.insert(problems.begin(), "it lacks " + joined(missing_, ", "));
    if (problems.empty()) return Status();
    return error(Code::kBadInput,
                 "the machine file cannot be used: {}; elixirctl probe --output FILE writes a "
                 "whole one",
                 joined(problems, "; "));
  }

 private:
  static constexpr const char* kTooLarge = "it is too large";

  // null counts as missing.
  const Json* find(const char* name, Need need) {
    const auto found = object_.find(name);
    if (found != object_.end() && !found->is_null()) return &*found;
    if (need == Need::kRequired) missing_.push_back(name);
    return nullptr;
  }

  void wrong(const char* name, const Json& value, const char* needed) {
    wrong_.push_back(fmt::format("{} is {}, {}", name, shown(value), needed));
  }

  const Json& object_;
  std::vector<std::string> missing_, wrong_;
};

constexpr char kByTrainers[] = "cpu_update_gparam_s_by_trainers";

using RateMember = std::pair<const char*, double GpuRates::*>;
constexpr RateMember kRateMembers[] = {{"g2c_gb_s", &GpuRates::g2c_gb_s},
                                       {"c2g_gb_s", &GpuRates::c2g_gb_s},
                                       {"joint_gb_s", &GpuRates::joint_gb_s},
                                       {"g2g_gb_s", &GpuRates::g2g_gb_s},
                                       {"gpu_update_gparam_s", &GpuRates::gpu_update_gparam_s},
                                       {"cpu_update_gparam_s", &GpuRates::cpu_update_gparam_s}};

Json rates_json(const GpuRates& rates) {
  Json out = {{"gpus", rates.gpus}};
  for (const auto& [name, member] : kRateMembers) {
    if (rates.*member > 0) out[name] = rates.*member;
  }
  return out;
}

// A field that only misses a known name: it would be left out in silence.
Status check_spelling(const Json& object) {
  static const std::vector<std::string> kKnown = {"version",
                                                  "gpus",
                                                  "gpu_memory_bytes",
                                                  "overhead_bytes",
                                                  "host_memory_bytes",
                                                  "g2c_gb_s",
                                                  "c2g_gb_s",
                                                  "joint_gb_s",
                                                  "g2g_gb_s",
                                                  "internode_gb_s",
                                                  "gpu_update_gparam_s",
                                                  "cpu_update_gparam_s",
                                                  "dram_gb_s",
                                                  "gpu_tflops",
                                                  "gpu_fp32_tflops",
                                                  "gpu_half_tokens",
                                                  "copies_hidden",
                                                  "by_gpus",
                                                  kByTrainers,
                                                  "name",
                                                  "probed",
                                                  "device",
                                                  "notes"};
  constexpr size_t kMostLonger = 2;
  for (const auto& [name, value] : object.items()) {
    std::vector<std::string> alike;
    for (const std::string& known : kKnown) {
      const auto [shorter, longer] = std::minmax({known.size(), name.size()});
      if (longer - shorter <= kMostLonger) alike.push_back(known);
    }
    const std::string nearest = nearest_name(name, alike);
    if (nearest.empty() || nearest == name || object.contains(nearest)) continue;
    return error(Code::kBadInput, "the machine file's field '{}' is not known; did you mean '{}'?",
                 name.substr(0, 40), nearest);
  }
  return Status();
}

// The lists, which are there as a whole or not at all.
Status read_lists(const Json& object, Machine* machine) {
  if (const auto list = object.find(kByTrainers); list != object.end() && !list->is_null()) {
    const bool numbers =
        list->is_array() &&
        std::all_of(list->begin(), list->end(), [](const Json& one) { return one.is_number(); });
    if (!numbers) return error(Code::kBadInput, "{} must be numbers", kByTrainers);
    machine->cpu_update_gparam_s_by_trainers = list->get<std::vector<double>>();
  }
  const auto list = object.find("by_gpus");
  if (list == object.end() || list->is_null()) return Status();
  if (!list->is_array()) return error(Code::kBadInput, "by_gpus must be a list of objects");
  for (const Json& one : *list) {
    if (!one.is_object()) return error(Code::kBadInput, "by_gpus must be a list of objects");
    Fields fields(one);
    GpuRates rates;
    fields.whole("gpus", &rates.gpus);
    for (const auto& [name, member] : kRateMembers) {
      fields.number(name, Need::kOptional, &(rates.*member));
    }
    ELIXIR_RETURN_IF_ERROR(fields.status());
    machine->by_gpus.push_back(rates);
  }
  return Status();
}

void read_rates(Fields& fields, Need g2g, Machine* machine) {
  fields.number("g2c_gb_s", Need::kRequired, &machine->g2c_gb_s);
  fields.number("c2g_gb_s", Need::kRequired, &machine->c2g_gb_s);
  fields.number("joint_gb_s", Need::kRequired, &machine->joint_gb_s);
  fields.number("g2g_gb_s", g2g, &machine->g2g_gb_s);
  fields.number("gpu_update_gparam_s", Need::kRequired, &machine->gpu_update_gparam_s);
  fields.number("cpu_update_gparam_s", Need::kRequired, &machine->cpu_update_gparam_s);
  fields.number("dram_gb_s", Need::kRequired, &machine->dram_gb_s);
  fields.number("gpu_tflops", Need::kRequired, &machine->gpu_tflops);
  fields.number("gpu_half_tokens", Need::kOptional, &machine->gpu_half_tokens);
  fields.number("gpu_fp32_tflops", Need::kOptional, &machine->gpu_fp32_tflops);
  fields.number("internode_gb_s", Need::kOptional, &machine->internode_gb_s);
  double hidden = std::numeric_limits<double>::quiet_NaN();
  fields.number("copies_hidden", Need::kOptional, &hidden);
  if (!std::isnan(hidden)) machine->copies_hidden = hidden;
}

Status check_memory(const Machine& machine) {
  for (const auto& [field, bytes] : {std::pair{"gpu_memory_bytes", machine.gpu_memory_bytes},
                                     std::pair{"host_memory_bytes", machine.host_memory_bytes}}) {
    if (bytes >= kLeastMemoryBytes) continue;
    return error(Code::kBadInput,
                 "{} is {} bytes, less than any machine has: give bytes, or a unit (--gpu-memory "
                 "40GiB, --host-memory 500GiB)",
                 field, bytes);
  }
  return Status();
}

void take_collectives(const MachineOverrides& overrides, Machine* machine) {
  if (overrides.internode_gb_s) machine->internode_gb_s = *overrides.internode_gb_s;
  if (!overrides.g2g_gb_s) return;
  machine->g2g_gb_s = *overrides.g2g_gb_s;
  for (GpuRates& rates : machine->by_gpus) rates.g2g_gb_s = 0;
}

// What older files meant otherwise.
Status take_version(uint32_t version, const Json& object, Machine* machine) {
  if (version > kMachineFileVersion) {
    return error(Code::kBadInput,
                 "the machine file is of version {}, and this program knows 1 and 2: take a newer "
                 "one, or measure again with elixirctl probe",
                 version);
  }
  if (version == kMachineFileVersion) return Status();
  if (!object.contains("overhead_bytes")) machine->overhead_bytes = 0;  // off the memory already
  if (!machine->probed.empty() && machine->gpus > 1) machine->g2g_gb_s /= machine->gpus - 1;
  const auto device = object.find("device");
  const bool cpu = device != object.end() && device->is_string() && *device == "cpu";
  if (cpu) machine->gpu_fp32_tflops = machine->gpu_tflops;  // measured in FP32
  return Status();
}

}  // namespace

std::string to_json(const Machine& machine) {
  ELIXIR_CHECK(machine.nodes == 1, "a machine's file is of one node, not of {}", machine.nodes);
  nlohmann::ordered_json out = {
      {"version", kMachineFileVersion},
      {"gpus", machine.gpus},
      {"gpu_memory_bytes", machine.gpu_memory_bytes},
      {"overhead_bytes", machine.overhead_bytes},
      {"host_memory_bytes", machine.host_memory_bytes},
      {"g2c_gb_s", machine.g2c_gb_s},
      {"c2g_gb_s", machine.c2g_gb_s},
      {"joint_gb_s", machine.joint_gb_s},
      {"g2g_gb_s", machine.g2g_gb_s},
      {"gpu_update_gparam_s", machine.gpu_update_gparam_s},
      {"cpu_update_gparam_s", machine.cpu_update_gparam_s},
      {"dram_gb_s", machine.dram_gb_s},
      {"gpu_tflops", machine.gpu_tflops},
      {"gpu_half_tokens", machine.gpu_half_tokens},
  };
  if (machine.gpus == 1 && machine.g2g_gb_s == 0) out["g2g_gb_s"] = nullptr;
  if (machine.internode_gb_s > 0) out["internode_gb_s"] = machine.internode_gb_s;
  if (machine.gpu_fp32_tflops > 0) out["gpu_fp32_tflops"] = machine.gpu_fp32_tflops;
  for (const GpuRates& rates : machine.by_gpus) out["by_gpus"].emplace_back(rates_json(rates));
  if (!machine.cpu_update_gparam_s_by_trainers.empty()) {
    out[kByTrainers] = machine.cpu_update_gparam_s_by_trainers;
  }
  if (machine.copies_hidden) out["copies_hidden"] = *machine.copies_hidden;
  if (!machine.name.empty()) out["name"] = machine.name;
  if (!machine.probed.empty()) out["probed"] = machine.probed;
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Machine> machine_from_json(std::string_view text, const MachineOverrides& overrides) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return error(Code::kBadInput,
                 "the machine file's {} bytes are no JSON object; elixirctl probe --output FILE "
                 "writes one",
                 text.size());
  }
  Machine machine;
  machine.overhead_bytes = kDeviceOverheadBytes;
  Fields fields(object);
  uint32_t version = 1;
  if (object.contains("version")) fields.whole("version", &version);
  const auto whole = [&](const char* name, auto* value, const auto& instead) {
    if (instead) {
      *value = *instead;
    } else {
      fields.whole(name, value);
    }
  };
  const bool names_gpus = object.contains("gpus") || !overrides.gpus;
  if (names_gpus) fields.whole("gpus", &machine.gpus);
  if (!names_gpus) machine.gpus = *overrides.gpus;
  if (object.contains("overhead_bytes")) fields.whole("overhead_bytes", &machine.overhead_bytes);
  whole("gpu_memory_bytes", &machine.gpu_memory_bytes, overrides.gpu_memory_bytes);
  whole("host_memory_bytes", &machine.host_memory_bytes, overrides.host_memory_bytes);
  const bool gathers = machine.gpus > 1 && overrides.gpus.value_or(machine.gpus) > 1;
  read_rates(fields, gathers && !overrides.g2g_gb_s ? Need::kRequired : Need::kOptional, &machine);
  fields.text("name", &machine.name);
  fields.text("probed", &machine.probed);
  ELIXIR_RETURN_IF_ERROR(check_spelling(object));
  ELIXIR_RETURN_IF_ERROR(fields.status());
  ELIXIR_RETURN_IF_ERROR(check_memory(machine));
  ELIXIR_RETURN_IF_ERROR(read_lists(object, &machine));
  ELIXIR_RETURN_IF_ERROR(take_version(version, object, &machine));
  // What a command line says is a whole GPU's.
  if (overrides.gpu_memory_bytes && !object.contains("overhead_bytes")) {
    machine.overhead_bytes = kDeviceOverheadBytes;
  }
  take_collectives(overrides, &machine);
  if (!gathers && machine.gpus > 1 && machine.g2g_gb_s == 0) {  // one of them is asked for
    machine.g2g_gb_s = g2g_through_host(machine);
  }
  ELIXIR_RETURN_IF_ERROR(check_machine(machine));
  const uint32_t gpus = overrides.gpus.value_or(machine.gpus);
  return with_gpus(machine, gpus, overrides.gpus_per_node.value_or(gpus));
}

}  // namespace elixir::planner
