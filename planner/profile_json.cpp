#include "planner/profile_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/compute_type_names.h"
#include "planner/json_fields.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::json;

constexpr EnumName<Keep> kKeepNames[] = {
    {"nothing", Keep::kNothing}, {"products", Keep::kProducts}, {"all", Keep::kAll}};

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

Json products_json(const OperatorWork& work) {
  Json products = Json::array();
  for (const MatrixProduct& product : work.products) {
    products.push_back({product.count, product.rows, product.columns, product.inner});
  }
  return products;
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
    products.push_back(products_json(work));
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

Json work_json(const OperatorWork& work) {
  Json json = {{"products", products_json(work)}, {"bytes", work.bytes}, {"kernels", work.kernels}};
  if (work.attention_flops > 0) json["attention_flops"] = work.attention_flops;
  return json;
}

Json run_json(const ProfiledRegion::Run& run) {
  return {{"steps", {run.steps.first, run.steps.last}},
          {"begin_bytes", run.begin_bytes},
          {"after_bytes", run.after_bytes}};
}

Json regions_json(const ModelProfile& profile) {
  Json json = Json::array();
  for (const ProfiledRegion& region : profile.regions) {
    Json& one = json.emplace_back();
    one = {{"forward", run_json(region.forward)}, {"backward", run_json(region.backward)}};
    for (const EnumName<Keep>& keep : kKeepNames) {
      const RegionBytes& bytes = region.bytes_of(keep.value);
      one["bytes"][keep.name] = {{"held", bytes.held},
                                 {"forward_peak", bytes.forward_peak},
                                 {"backward_peak", bytes.backward_peak}};
    }
    one["boundary_bytes"] = region.boundary_bytes;
    Json& second_run = one["second_run"] = Json::array();
    for (const SecondRunWork& work : region.second_run) {
      second_run.push_back({{"step", work.step},
                            {"kept", work_json(work.products)},
                            {"others", work_json(work.others)}});
    }
  }
  return json;
}

// The object in a field of another. A failure if there is none.
JsonFields inner(const Json& json, const char* name, const std::string& where, Status* status) {
  static const Json none;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return {found == json.end() ? none : *found, where + name + ".", status};
}

OperatorWork work_from(JsonFields fields, uint32_t head) {
  OperatorWork work;
  std::vector<std::vector<uint64_t>> products;
  fields.required("products", &products);
  fields.required("bytes", &work.bytes);
  fields.required("kernels", &work.kernels);
  fields.optional("attention_flops", &work.attention_flops);
  work.products = products_of(products, fields);
  work.attention_head = work.attention_flops > 0 ? head : 0;
  return work;
}

ProfiledRegion::Run run_from(JsonFields fields) {
  ProfiledRegion::Run run;
  std::vector<uint32_t> steps;
  fields.required("steps", &steps);
  fields.required("begin_bytes", &run.begin_bytes);
  fields.required("after_bytes", &run.after_bytes);
  if (steps.size() == 2) {
    run.steps = {steps[0], steps[1]};
  } else {
    fields.fail("steps is not [first, last]");
  }
  return run;
}

void read_kept_regions(const Json& file, JsonFields& fields, ModelProfile* profile) {
  if (!file.contains("regions")) return;
  const Json* const list = fields.array("regions");
  uint32_t head = 0;
  fields.optional("attention_head", &head);
  Status* const status = fields.status();
  for (size_t i = 0; list != nullptr && i < list->size() && status->ok(); ++i) {
    const Json& json = (*list)[i];
    const std::string where = fmt::format("regions[{}].", i);
    ProfiledRegion region{.forward = run_from(inner(json, "forward", where, status)),
                          .backward = run_from(inner(json, "backward", where, status))};
    for (const EnumName<Keep>& keep : kKeepNames) {
      RegionBytes& bytes = region.bytes[static_cast<size_t>(keep.value)];
      const Json& all = json.is_object() && json.contains("bytes") ? json["bytes"] : json;
      JsonFields one = inner(all, keep.name, where + "bytes.", status);
      one.required("held", &bytes.held);
      one.required("forward_peak", &bytes.forward_peak);
      one.required("backward_peak", &bytes.backward_peak);
    }
    JsonFields own(json, where, status);
    own.optional("boundary_bytes", &region.boundary_bytes);
    const Json* const runs = own.array("second_run");
    for (size_t k = 0; runs != nullptr && k < runs->size() && status->ok(); ++k) {
      const std::string in_run = fmt::format("{}second_run[{}].", where, k);
      JsonFields one((*runs)[k], in_run, status);
      SecondRunWork work;
      one.required("step", &work.step);
      work.products = work_from(inner((*runs)[k], "kept", in_run, status), head);
      work.others = work_from(inner((*runs)[k], "others", in_run, status), head);
      region.second_run.push_back(std::move(work));
    }
    profile->regions.push_back(std::move(region));
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
  if (!profile.regions.empty()) json["regions"] = regions_json(profile);
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
  if (status.ok()) read_kept_regions(file, fields, &profile);
  if (!status.ok()) {
    return error(Code::kBadInput, "not a profile: {}; 'elixirctl profile --output' writes one",
                 status.message());
  }
  ELIXIR_RETURN_IF_ERROR(check_profile(profile));
  return profile;
}

}  // namespace elixir::planner
