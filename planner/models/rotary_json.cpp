#include "planner/models/rotary_json.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/enum_names.h"
#include "base/printable.h"
#include "planner/json_fields.h"

namespace elixir::planner {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;

constexpr EnumName<RotaryKind> kKindNames[] = {{"default", RotaryKind::kDefault},
                                               {"linear", RotaryKind::kLinear},
                                               {"dynamic", RotaryKind::kDynamic},
                                               {"yarn", RotaryKind::kYarn},
                                               {"llama3", RotaryKind::kLlama3}};
constexpr const char* kFull = "full_attention";
constexpr const char* kWindowed = "sliding_attention";
constexpr int64_t kMostPositions = int64_t{1} << 28;
constexpr double kMostFactor = 1 << 20;

RotaryKind kind_in(ConfigFields& fields) {
  for (const char* field : {"rope_type", "type"}) {
    if (!fields.given(field)) continue;
    const std::string text = fields.text(field);
    for (const auto& [name, value] : kKindNames) {
      if (text == name) return value;
    }
    fields.fail(not_computed("{} is {}", fields.quoted(field), shown(json(text))));
    break;
  }
  return RotaryKind::kDefault;
}

void check_kind_names(ConfigFields& fields) {
  if (!fields.given("rope_type") || !fields.given("type")) return;
  if (fields.text("rope_type") == fields.text("type")) return;
  fields.fail(bad_config("{} is {}, and {} {}; make them equal", fields.quoted("rope_type"),
                         shown(json(fields.text("rope_type"))), fields.quoted("type"),
                         shown(json(fields.text("type")))));
}

// YaRN's default, by Peng et al., section 3.4.
double yarn_magnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

// transformers takes null for false.
bool truncate_in(ConfigFields& fields) {
  return !fields.has("truncate") || fields.flag("truncate", false);
}

void read_yarn(ConfigFields& fields, std::optional<bool> truncate, Rotary& rotary) {
  const auto or_default = [&](const char* field, double missing) {
    const double value = fields.number(field, missing);
    return value == 0 ? missing : value;  // as transformers reads it
  };
  rotary.beta_fast = or_default("beta_fast", 32);
  rotary.beta_slow = or_default("beta_slow", 1);
  rotary.truncate = truncate ? *truncate : truncate_in(fields);
  const double scale = fields.number("mscale", 0), of_all = fields.number("mscale_all_dim", 0);
  const double magnitude = scale > 0 && of_all > 0 ? yarn_magnitude(rotary.factor, scale) /
                                                         yarn_magnitude(rotary.factor, of_all)
                                                   : yarn_magnitude(rotary.factor, 1);
  rotary.magnitude = fields.number("attention_factor", magnitude);
  if (rotary.base <= 1) {
    fields.fail(bad_config("'rope_theta' is {}; it must be above 1 with YaRN", rotary.base));
  }
}

void read_llama3(ConfigFields& fields, Rotary& rotary) {
  rotary.low_freq_factor = fields.positive("low_freq_factor");
  rotary.high_freq_factor = fields.positive("high_freq_factor");
  if (fields.status().ok() && rotary.high_freq_factor <= rotary.low_freq_factor) {
    fields.fail(bad_config("{} is {}; it must be above {}, which is {}",
                           fields.quoted("high_freq_factor"), rotary.high_freq_factor,
                           fields.quoted("low_freq_factor"), rotary.low_freq_factor));
  }
}

constexpr const char* kShare = "partial_rotary_factor";

// A share of 1 that a type has means that it knows no other.
void read_share(ConfigFields& fields, const char* field, Rotary& rotary) {
  if (rotary.share == 1) return fields.one_of(field, {1});
  rotary.share = fields.positive(field, rotary.share);
  if (rotary.share > 1) {
    fields.fail(
        bad_config("{} is {}; it must be a share from 0 to 1", fields.quoted(field), rotary.share));
    rotary.share = 1;
  }
}

// Of one description. `rotary.base` and `rotary.share` are set: those outside of it. `truncate`:
// where it does not count what the description says of it.
void read_described(ConfigFields& fields, int64_t context, std::optional<bool> truncate,
                    Rotary& rotary) {
  check_kind_names(fields);
  rotary.kind = kind_in(fields);
  rotary.base = fields.positive("rope_theta", rotary.base);
  read_share(fields, kShare, rotary);
  if (rotary.kind == RotaryKind::kDefault) return;
  rotary.factor = fields.positive("factor");
  if (rotary.factor > kMostFactor || (rotary.kind == RotaryKind::kDynamic && rotary.factor < 1)) {
    fields.fail(bad_config("{} is {}; it must be a number from 1 to {}", fields.quoted("factor"),
                           rotary.factor, kMostFactor));
  }
  if (rotary.kind == RotaryKind::kLinear) return;
  if (rotary.kind == RotaryKind::kDynamic) {
    fields.known({"original_max_position_embeddings"});  // transformers does not read it, either
    rotary.original_context = context;
    return;
  }
  rotary.original_context =
      fields.size("original_max_position_embeddings", kMostPositions, context);
  if (rotary.kind == RotaryKind::kYarn) read_yarn(fields, truncate, rotary);
  if (rotary.kind == RotaryKind::kLlama3) read_llama3(fields, rotary);
}

// What a file says outside of descriptions, and which of them were found in it so far.
struct Found {
  ConfigFields& fields;
  const char* base_field;  // "rope_theta"
  int64_t context;
  Rotary& rotary;
  std::optional<bool> truncate = {};  // Gemma 3: what transformers takes for each description
  const char* described_by = nullptr;
};

// One more description, of `object` in the field `name`. Nobody knows which of two was meant.
void take(Found& found, const char* name, const json& object) {
  ConfigFields inner(object, std::string(name) + ".");
  const double outside = found.rotary.base;
  Rotary rotary{.base = outside, .share = found.rotary.share};
  read_described(inner, found.context, found.truncate, rotary);
  if (found.truncate && object.value("truncate", json(true)) == json(*found.truncate))
    inner.known({"truncate"});
  // models/rotation.h requires it.
  ELIXIR_CHECK(rotary.base > 0 && rotary.factor > 0, "base {}, factor {}", rotary.base,
               rotary.factor);
  found.fields.adopt(inner);
  if (found.described_by == nullptr && found.fields.given(found.base_field) &&
      rotary.base != outside) {
    found.fields.fail(bad_config("'{}' is {}, and that in '{}' {}; make them equal",
                                 found.base_field, outside, name, rotary.base));
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (rotary.original_context != 0 && rotary.original_context != found.context &&
      found.fields.given(kOriginal)) {
    found.fields.fail(bad_config("'{}' is {}, and that in '{}' {}; make them equal", kOriginal,
                                 found.context, name, rotary.original_context));
  }
  if (found.described_by != nullptr && rotary != found.rotary) {
    found.fields.fail(
        bad_config("'{}' and '{}' differ; leave out one of them", found.described_by, name));
  }
  found.rotary = rotary;
  found.described_by = name;
}

Found begin(ConfigFields& fields, const char* base_field, int64_t context, Rotary& rotary,
            const char* share_field = kShare) {
  rotary.base = fields.positive(base_field, rotary.base);
  read_share(fields, share_field, rotary);
  return {.fields = fields, .base_field = base_field, .context = context, .rotary = rotary};
}

// 'original_max_position_embeddings' may also stand outside of the description.
int64_t original_context(ConfigFields& fields, int64_t context) {
  return fields.size("original_max_position_embeddings", kMostPositions, context);
}

void widen(ConfigFields& fields, TransformerConfig& config) {
  if (config.rotary.kind != RotaryKind::kDynamic || !fields.status().ok()) return;
  const double longest = std::floor(static_cast<double>(config.context) * config.rotary.factor);
  config.context = static_cast<int64_t>(std::min<double>(longest, kMostPositions));
  if (config.width > 0 && config.heads > 0 && config.head_numel() <= 2) {
    fields.fail(not_computed("'rope_type' is \"dynamic\" with heads of a width of 2"));
  }
}

Json described(const Rotary& rotary) {
  Json json = {{"rope_type", name_in(kKindNames, rotary.kind)}, {"rope_theta", rotary.base}};
  if (rotary.share != 1) json[kShare] = rotary.share;
  if (rotary.kind == RotaryKind::kDefault) return json;
  json["factor"] = rotary.factor;
  if (rotary.kind == RotaryKind::kLinear || rotary.kind == RotaryKind::kDynamic) return json;
  json["original_max_position_embeddings"] = rotary.original_context;
  if (rotary.kind == RotaryKind::kLlama3) {
    json["low_freq_factor"] = rotary.low_freq_factor;
    json["high_freq_factor"] = rotary.high_freq_factor;
    return json;
  }
  json["beta_fast"] = rotary.beta_fast;
  json["beta_slow"] = rotary.beta_slow;
  json["truncate"] = rotary.truncate;
  json["attention_factor"] = rotary.magnitude;
  return json;
}

}  // namespace

void read_rotary(ConfigFields& fields, TransformerConfig& config, const RotaryNames& names) {
  Found found = begin(fields, names.base, original_context(fields, config.context), config.rotary,
                      names.share);
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const json* const object = fields.object(field);
    if (object == nullptr) continue;
    for (const auto& [name, value] : object->items()) {
      if (value.is_object()) {
        return fields.fail(not_computed("'{}' has one for '{}'", field, printable(name)));
      }
    }
    take(found, field, *object);
  }
  if (config.rotary.kind == RotaryKind::kDynamic) config.rotary.original_context = config.context;
  widen(fields, config);
}

void read_layered_rotary(ConfigFields& fields, TransformerConfig& config) {
  constexpr double kLocalBase = 10000;
  Rotary local{.base = kLocalBase};
  Found all = begin(fields, "rope_theta", config.context, config.rotary);
  Found near = begin(fields, "rope_local_base_freq", config.context, local);
  const json* const parameters = fields.object("rope_parameters");
  const json none = json::object();
  ConfigFields inner(parameters != nullptr ? *parameters : none, "rope_parameters.");
  all.truncate = near.truncate = truncate_in(inner);
  if (const json* const scaling = fields.object("rope_scaling"))
    take(all, "rope_scaling", *scaling);
  if (parameters != nullptr) {
    const json* const full = inner.object(kFull);
    const json* const windowed = inner.object(kWindowed);
    if (full == nullptr && windowed == nullptr) {
      inner.fail(not_computed("'rope_parameters' has neither '{}' nor '{}'", kFull, kWindowed));
    }
    if (full != nullptr) take(all, "rope_parameters.full_attention", *full);
    if (windowed != nullptr) take(near, "rope_parameters.sliding_attention", *windowed);
    fields.adopt(inner);
  }
  if (local.kind == RotaryKind::kDynamic || config.rotary.kind == RotaryKind::kDynamic) {
    fields.fail(not_computed("'rope_type' is \"dynamic\" for some layers"));
  }
  if (local != config.rotary) config.window_rotary = local;
}

void write_rotary(const TransformerConfig& config, Json& json, const RotaryNames& names) {
  json[names.base] = config.rotary.base;
  // Where a file without it means another one.
  const bool parallel = config.family == Family::kNeoX || config.family == Family::kPhi;
  if (parallel) json[names.share] = config.rotary.share;
  Json parameters = described(config.rotary);
  if (config.rotary.kind != RotaryKind::kDefault) {
    json["rope_scaling"] = parameters;
    json["rope_scaling"].erase("rope_theta");
  }
  if (config.four_norms && config.qk_norm) {
    const Rotary& local = config.window_rotary ? *config.window_rotary : config.rotary;
    json["rope_local_base_freq"] = local.base;
    const bool truncate = config.rotary.truncate && local.truncate;
    json["rope_parameters"] = {{kFull, std::move(parameters)}, {kWindowed, described(local)}};
    if (!truncate) json["rope_parameters"]["truncate"] = false;
  } else {
    json["rope_parameters"] = std::move(parameters);
  }
}

}  // namespace elixir::planner
