#include "planner/profile_json.h"

#include <nlohmann/json.hpp>

#include "base/compute_type_names.h"
#include "planner/json_fields.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::json;

Json params_json(const ModelProfile& profile) {
  Json params = Json::array();
  for (const ProfiledParameter& param : profile.params) {
    Json one = {{"name", param.name}, {"numel", param.numel}, {"shared", param.shared}};
    if (param.frozen) one["frozen"] = true;
    if (param.group != 0) one["group"] = param.group;
    params.push_back(std::move(one));
  }
  return params;
}

void read_params(JsonFields& fields, ModelProfile* profile) {
  const Json* const list = fields.array("params");
  if (list == nullptr) return;
  for (size_t i = 0; i < list->size(); ++i) {
    JsonFields one((*list)[i], fmt::format("params[{}].", i), fields.status());
    ProfiledParameter param;
    one.required("name", &param.name);
    one.required("numel", &param.numel);
    one.optional("shared", &param.shared);
    one.optional("frozen", &param.frozen);
    one.optional("group", &param.group);
    profile->params.push_back(std::move(param));
  }
}

void read_regions(JsonFields& fields, ModelProfile* profile) {
  std::vector<std::vector<uint32_t>> regions;
  fields.required("checkpoint_regions", &regions);
  for (const std::vector<uint32_t>& region : regions) {
    if (region.size() != 2) {
      fields.fail(fmt::format("checkpoint_regions holds a list of {}; each is [first, last]",
                              region.size()));
      return;
    }
    profile->checkpoint_regions.push_back({region[0], region[1]});
  }
}

// "dtype" where it is there; files of an earlier release say "dtype_bytes" alone, and 2 is BF16.
void read_type(JsonFields& fields, ModelProfile* profile) {
  uint32_t bytes = 0;
  fields.required("dtype_bytes", &bytes);
  std::string name = bytes == 4 ? "fp32" : "bf16";
  fields.optional("dtype", &name);
  if (!fields.status()->ok()) return;
  const Result<ComputeType> type = parse_name(kComputeTypeNames, name.substr(0, 40));
  if (!type.ok() || element_bytes(*type) != bytes) {
    return fields.fail(
        fmt::format("dtype is '{}' and dtype_bytes = {}; it is bf16, fp16 (2) or "
                    "fp32 (4)",
                    name.substr(0, 40), bytes));
  }
  profile->type = *type;
}

}  // namespace

std::string to_json(const ModelProfile& profile) {
  Json regions = Json::array();
  for (const OperatorRange& region : profile.checkpoint_regions) {
    regions.push_back({region.first, region.last});
  }
  Json json = {{"model", profile.model},
               {"params", params_json(profile)},
               {"steps", profile.steps},
               {"checkpoint_regions", std::move(regions)},
               {"activation_bytes", profile.activation_bytes},
               {"buffer_bytes", profile.buffer_bytes},
               {"dtype_bytes", profile.dtype_bytes()},
               {"dtype", compute_type_name(profile.type)},
               {"tokens", profile.tokens},
               {"backward_begin", profile.backward_begin},
               {"measured", profile.measured}};
  if (!profile.step_flops.empty()) json["step_flops"] = profile.step_flops;
  if (!profile.gradient_after.empty()) json["gradient_after"] = profile.gradient_after;
  if (!profile.activation_curve.empty()) json["activation_curve"] = profile.activation_curve;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ModelProfile> profile_from_json(std::string_view text) {
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Status status;
  JsonFields fields(file, "", &status);
  ModelProfile profile;
  read_params(fields, &profile);
  fields.required("steps", &profile.steps);
  read_regions(fields, &profile);
  fields.required("activation_bytes", &profile.activation_bytes);
  fields.required("buffer_bytes", &profile.buffer_bytes);
  read_type(fields, &profile);
  fields.optional("model", &profile.model);
  fields.optional("tokens", &profile.tokens);
  fields.optional("backward_begin", &profile.backward_begin);
  fields.optional("measured", &profile.measured);
  fields.optional("step_flops", &profile.step_flops);
  fields.optional("gradient_after", &profile.gradient_after);
  fields.optional("activation_curve", &profile.activation_curve);
  if (!status.ok()) {
    return error(Code::kBadInput, "not a profile: {}; 'elixirctl profile --output' writes one",
                 status.message());
  }
  ELIXIR_RETURN_IF_ERROR(check_profile(profile));
  return profile;
}

}  // namespace elixir::planner
