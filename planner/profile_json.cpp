#include "planner/profile_json.h"

#include <algorithm>
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

// The work of operators, a list for each kind.
void write_work(const ModelProfile& profile, Json* json) {
  uint32_t head = 0;
  Json attention = Json::array(), bytes = Json::array(), kernels = Json::array(),
       products = Json::array();
  for (const OperatorWork& work : profile.step_work) {
    attention.push_back(work.attention_flops);
    bytes.push_back(work.bytes);
    kernels.push_back(work.kernels);
    Json& step = products.emplace_back(Json::array());
    for (const MatrixProduct& product : work.products) {
      step.push_back({product.count, product.rows, product.columns, product.inner});
    }
    head = std::max(head, work.attention_head);
  }
  (*json)["step_attention_flops"] = std::move(attention);
  (*json)["step_bytes"] = std::move(bytes);
  (*json)["step_kernels"] = std::move(kernels);
  (*json)["step_products"] = std::move(products);
  (*json)["attention_head"] = head;
}

std::vector<MatrixProduct> products_of(const std::vector<std::vector<uint64_t>>& step,
                                       JsonFields& fields) {
  std::vector<MatrixProduct> products;
  for (const std::vector<uint64_t>& product : step) {
    if (product.size() != 4) {
      fields.fail(fmt::format(
          "step_products holds a list of {}; each product is [count, rows, columns, inner]",
          product.size()));
      return {};
    }
    products.push_back({product[0], product[1], product[2], product[3]});
  }
  return products;
}

// All of the lists are there, one entry for each step, or none is.
void read_work(JsonFields& fields, ModelProfile* profile) {
  std::vector<double> attention, bytes;
  std::vector<uint32_t> kernels;
  std::vector<std::vector<std::vector<uint64_t>>> products;
  uint32_t head = 0;
  fields.optional("step_attention_flops", &attention);
  fields.optional("step_bytes", &bytes);
  fields.optional("step_kernels", &kernels);
  fields.optional("step_products", &products);
  fields.optional("attention_head", &head);
  const size_t count = bytes.size();
  if (attention.size() != count || kernels.size() != count || products.size() != count ||
      (count > 0 && profile->step_flops.size() != count)) {
    return fields.fail(fmt::format(
        "step_flops, step_attention_flops, step_bytes, step_kernels and step_products have {}, {}, "
        "{}, {} and {} entries: give all of them for each step, or step_flops alone",
        profile->step_flops.size(), attention.size(), count, kernels.size(), products.size()));
  }
  for (size_t i = 0; i < count; ++i) {
    profile->step_work.push_back({.products = products_of(products[i], fields),
                                  .attention_flops = attention[i],
                                  .attention_head = attention[i] > 0 ? head : 0,
                                  .bytes = bytes[i],
                                  .kernels = kernels[i]});
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
  if (!profile.step_work.empty()) write_work(profile, &json);
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
  if (status.ok()) read_work(fields, &profile);
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
