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
#include "planner/json_fields.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::json;

enum class Need { kRequired, kOptional };

Status unusable(const Status& why) {
  if (why.ok()) return why;
  return error(Code::kBadInput,
               "the machine file cannot be used: {}; elixirctl probe --output FILE writes a whole "
               "one",
               why.message());
}

constexpr char kByTrainers[] = "cpu_update_gparam_s_by_trainers";

constexpr char kHalfTokens[] = "gpu_half_tokens";  // up to version 2
constexpr char kG2g[] = "g2g_gb_s";
struct Rate {
  const char* name;
  double GpuRates::*member;
  const char* old_name = nullptr;  // of an earlier release

  const char* name_in(const Json& object) const {
    return old_name != nullptr && object.contains(old_name) ? old_name : name;
  }
};
constexpr Rate kRates[] = {{"d2h_gb_s", &GpuRates::d2h_gb_s, "g2c_gb_s"},
                           {"h2d_gb_s", &GpuRates::h2d_gb_s, "c2g_gb_s"},
                           {"joint_gb_s", &GpuRates::joint_gb_s},
                           {kG2g, &GpuRates::g2g_gb_s},
                           {"gpu_update_gparam_s", &GpuRates::gpu_update_gparam_s},
                           {"cpu_update_gparam_s", &GpuRates::cpu_update_gparam_s}};

struct MachineRate {
  const char* name;
  double Machine::*member;
  Need need;  // optional ones are written where they are known
};
constexpr MachineRate kMachineRates[] = {
    {"internode_gb_s", &Machine::internode_gb_s, Need::kOptional},
    {"dram_gb_s", &Machine::dram_gb_s, Need::kRequired},
    {"cpu_update_beside_copies_gparam_s", &Machine::cpu_update_beside_copies_gparam_s,
     Need::kOptional},
    {"gpu_tflops", &Machine::gpu_tflops, Need::kRequired},
    {"gpu_fp32_tflops", &Machine::gpu_fp32_tflops, Need::kOptional},
    {"gpu_peak_tflops", &Machine::gpu_peak_tflops, Need::kOptional},
    {"gpu_memory_gb_s", &Machine::gpu_memory_gb_s, Need::kOptional},
    {"gpu_launch_us", &Machine::gpu_launch_us, Need::kOptional},
    {"paper_tflops", &Machine::paper_tflops, Need::kOptional},
    {"paper_parameter_ps", &Machine::paper_parameter_ps, Need::kOptional}};
constexpr char kAttention[] = "gpu_attention_tflops";

// A field that only misses a known name: it would be left out in silence.
Status check_spelling(const Json& object) {
  std::vector<std::string> known_names = {
      "version",    "gpus",     "gpu_memory_bytes", "overhead_bytes", "host_memory_bytes",
      "numa_nodes", kAttention, kHalfTokens,        "copies_hidden",  "by_gpus",
      kByTrainers,  "name",     "probed",           "device",         "hardware",
      "notes"};
  for (const Rate& rate : kRates) known_names.emplace_back(rate.name_in(object));
  for (const MachineRate& rate : kMachineRates) known_names.emplace_back(rate.name);
  constexpr size_t kMostLonger = 2;
  for (const auto& [name, value] : object.items()) {
    std::vector<std::string> alike;
    for (const std::string& known : known_names) {
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

void read_rates(const Json& object, JsonFields& fields, Need g2g, Machine* machine) {
  const auto read = [&](const char* name, Need need, double* value) {
    need == Need::kRequired ? fields.required(name, value) : fields.optional(name, value);
  };
  for (const Rate& rate : kRates) {
    read(rate.name_in(object), rate.name == kG2g ? g2g : Need::kRequired, &(machine->*rate.member));
  }
  for (const auto& [name, member, need] : kMachineRates) read(name, need, &(machine->*member));
  double hidden = std::numeric_limits<double>::quiet_NaN();
  fields.optional("copies_hidden", &hidden);
  if (!std::isnan(hidden)) machine->copies_hidden = hidden;
}

void read_attention(JsonFields& fields, Machine* machine) {
  std::vector<std::vector<double>> rows;
  fields.optional(kAttention, &rows);
  for (const std::vector<double>& row : rows) {
    const bool whole = row.size() == 3 && row[0] >= 1 && row[0] <= 65536;
    if (!whole)
      return fields.fail("gpu_attention_tflops is a list of [head width, forward, backward]");
    machine->gpu_attention_tflops.push_back({static_cast<uint32_t>(row[0]), row[1], row[2]});
  }
}

void read_lists(const Json& object, JsonFields& fields, Machine* machine) {
  fields.optional(kByTrainers, &machine->cpu_update_gparam_s_by_trainers);
  read_attention(fields, machine);
  if (!object.contains("by_gpus") || object["by_gpus"].is_null()) return;
  const Json* const list = fields.array("by_gpus");
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    JsonFields one((*list)[i], fmt::format("by_gpus[{}].", i), fields.status());
    GpuRates& rates = machine->by_gpus.emplace_back();
    one.required("gpus", &rates.gpus);
    for (const Rate& rate : kRates) one.optional(rate.name_in((*list)[i]), &(rates.*rate.member));
  }
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

void take_link(double gb_s, Machine* machine) {
  const double both = machine->h2d_gb_s + machine->d2h_gb_s;
  machine->h2d_gb_s = machine->d2h_gb_s = machine->gpus * gb_s;
  machine->joint_gb_s *= 2 * machine->gpus * gb_s / both;
  for (GpuRates& rates : machine->by_gpus) rates.h2d_gb_s = rates.d2h_gb_s = rates.joint_gb_s = 0;
}

// Memory that carries such an update is as fast at least.
void take_cpu(double gparam_s, Machine* machine) {
  machine->cpu_update_gparam_s = gparam_s;
  machine->dram_gb_s = std::max(machine->dram_gb_s, kUpdateBytes * gparam_s);
  machine->cpu_update_beside_copies_gparam_s = 0;
  machine->cpu_update_gparam_s_by_trainers.clear();
  for (GpuRates& rates : machine->by_gpus) rates.cpu_update_gparam_s = 0;
}

// elixird's workers stay on their NUMA node, and so do the states: rates add up.
void take_numa_nodes(uint32_t nodes, Machine* machine) {
  const double factor = static_cast<double>(nodes) / machine->numa_nodes;
  machine->numa_nodes = nodes;
  machine->dram_gb_s *= factor;
  machine->cpu_update_gparam_s *= factor;
  machine->cpu_update_beside_copies_gparam_s *= factor;
  for (double& rate : machine->cpu_update_gparam_s_by_trainers) rate *= factor;
  for (GpuRates& rates : machine->by_gpus) rates.cpu_update_gparam_s *= factor;
}

void take_hardware(const MachineOverrides& overrides, Machine* machine) {
  if (overrides.gpu) *machine = with_gpu(*machine, *overrides.gpu);
  if (overrides.gpu_memory_bytes) machine->gpu_memory_bytes = *overrides.gpu_memory_bytes;
  if (overrides.host_numa_nodes) take_numa_nodes(*overrides.host_numa_nodes, machine);
  if (overrides.link_gb_s) take_link(*overrides.link_gb_s, machine);
  if (overrides.cpu_gparam_s) take_cpu(*overrides.cpu_gparam_s, machine);
}

// What older files meant otherwise.
Status take_version(uint32_t version, const Json& object, Machine* machine) {
  if (version > kMachineFileVersion) {
    return error(Code::kBadInput,
                 "the machine file is of version {}, and this program knows 1 to {}: take a newer "
                 "one, or measure again with elixirctl probe",
                 version, kMachineFileVersion);
  }
  if (version == kMachineFileVersion) return Status();
  if (const auto half = object.find(kHalfTokens); half != object.end() && half->is_number()) {
    constexpr double kFlops = 8;  // per parameter and token: checkpointed
    machine->paper_parameter_ps = kFlops * half->get<double>() / machine->gpu_tflops;
  }
  if (version == 2) return Status();
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
  };
  if (machine.numa_nodes > 1) out["numa_nodes"] = machine.numa_nodes;
  for (const Rate& rate : kRates) out[rate.name] = machine.*rate.member;
  for (const auto& [name, member, need] : kMachineRates) {
    if (need == Need::kRequired || machine.*member > 0) out[name] = machine.*member;
  }
  if (machine.gpus == 1 && machine.g2g_gb_s == 0) out[kG2g] = nullptr;
  for (const GpuRates& rates : machine.by_gpus) {
    auto& one = out["by_gpus"].emplace_back(nlohmann::ordered_json{{"gpus", rates.gpus}});
    for (const Rate& rate : kRates) {
      if (rates.*rate.member > 0) one[rate.name] = rates.*rate.member;
    }
  }
  if (!machine.cpu_update_gparam_s_by_trainers.empty()) {
    out[kByTrainers] = machine.cpu_update_gparam_s_by_trainers;
  }
  for (const AttentionRate& rate : machine.gpu_attention_tflops) {
    out[kAttention].push_back({rate.head, rate.forward_tflops, rate.backward_tflops});
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
                 "the machine file's {} bytes are not a JSON object; elixirctl probe --output FILE "
                 "writes one",
                 text.size());
  }
  Machine machine;
  machine.overhead_bytes = kDeviceOverheadBytes;
  Status status;
  JsonFields fields(object, "", &status);
  uint32_t version = 1;
  fields.optional("version", &version);
  const auto whole = [&](const char* name, auto* value, const auto& instead) {
    if (instead) {
      *value = *instead;
    } else {
      fields.required(name, value);
    }
  };
  const bool names_gpus = object.contains("gpus") || !overrides.gpus;
  if (names_gpus) fields.required("gpus", &machine.gpus);
  if (!names_gpus) machine.gpus = *overrides.gpus;
  fields.optional("overhead_bytes", &machine.overhead_bytes);
  fields.optional("numa_nodes", &machine.numa_nodes);
  whole("gpu_memory_bytes", &machine.gpu_memory_bytes, overrides.gpu_memory_bytes);
  whole("host_memory_bytes", &machine.host_memory_bytes, overrides.host_memory_bytes);
  const bool gathers = machine.gpus > 1 && overrides.gpus.value_or(machine.gpus) > 1;
  read_rates(object, fields, gathers && !overrides.g2g_gb_s ? Need::kRequired : Need::kOptional,
             &machine);
  fields.optional("name", &machine.name);
  fields.optional("probed", &machine.probed);
  read_lists(object, fields, &machine);
  ELIXIR_RETURN_IF_ERROR(check_spelling(object));
  ELIXIR_RETURN_IF_ERROR(unusable(status));
  ELIXIR_RETURN_IF_ERROR(check_memory(machine));
  ELIXIR_RETURN_IF_ERROR(take_version(version, object, &machine));
  // What a command line says is a whole GPU's.
  if (overrides.gpu_memory_bytes && !object.contains("overhead_bytes")) {
    machine.overhead_bytes = kDeviceOverheadBytes;
  }
  take_hardware(overrides, &machine);
  take_collectives(overrides, &machine);
  if (!gathers && machine.gpus > 1 && machine.g2g_gb_s == 0) {  // one of them is asked for
    machine.g2g_gb_s = g2g_through_host(machine);
  }
  ELIXIR_RETURN_IF_ERROR(check_machine(machine));
  const uint32_t gpus = overrides.gpus.value_or(machine.gpus);
  Result<Machine> scaled = with_gpus(machine, gpus, overrides.gpus_per_node.value_or(gpus));
  // A rate near either end is beyond it for more GPUs, or for fewer.
  if (scaled.ok()) ELIXIR_RETURN_IF_ERROR(check_machine(*scaled));
  return scaled;
}

}  // namespace elixir::planner
