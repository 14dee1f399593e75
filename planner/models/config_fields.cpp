#include "planner/models/config_fields.h"

#include <algorithm>
#include <utility>

#include "planner/json_fields.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

// transformers writes these, or wrote them once, and none of them changes a training step: names of
// things, tokens with a meaning, how to generate text, what a classifier would need, memory.
constexpr std::string_view kOfNoEffect[] = {"_attn_implementation",
                                            "_attn_implementation_autoset",
                                            "_commit_hash",
                                            "_name_or_path",
                                            "architectures",
                                            "attn_implementation",
                                            "begin_suppress_tokens",
                                            "bad_words_ids",
                                            "bos_token_id",
                                            "cache_implementation",
                                            "chunk_size_feed_forward",
                                            "cross_attention_hidden_size",
                                            "decoder_start_token_id",
                                            "diversity_penalty",
                                            "do_sample",
                                            "dtype",
                                            "early_stopping",
                                            "encoder_no_repeat_ngram_size",
                                            "eos_token_id",
                                            "exponential_decay_length_penalty",
                                            "finetuning_task",
                                            "forced_bos_token_id",
                                            "forced_eos_token_id",
                                            "gradient_checkpointing",
                                            "id2label",
                                            "is_decoder",
                                            "is_encoder_decoder",
                                            "label2id",
                                            "length_penalty",
                                            "max_length",
                                            "min_length",
                                            "model_type",
                                            "no_repeat_ngram_size",
                                            "num_beam_groups",
                                            "num_beams",
                                            "num_labels",
                                            "num_return_sequences",
                                            "output_attentions",
                                            "output_hidden_states",
                                            "output_scores",
                                            "pretraining_tp",
                                            "prefix",
                                            "problem_type",
                                            "remove_invalid_values",
                                            "repetition_penalty",
                                            "return_dict",
                                            "return_dict_in_generate",
                                            "sep_token_id",
                                            "suppress_tokens",
                                            "task_specific_params",
                                            "temperature",
                                            "tf_legacy_loss",
                                            "tie_encoder_decoder",
                                            "tokenizer_class",
                                            "top_k",
                                            "top_p",
                                            "torch_dtype",
                                            "torchscript",
                                            "transformers_version",
                                            "typical_p",
                                            "unk_token_id",
                                            "use_bfloat16",
                                            "use_cache"};

// These change a training step unless they have this value.
struct WithoutEffect {
  std::string_view name;
  json value;
};
const std::vector<WithoutEffect>& without_effect() {
  static const std::vector<WithoutEffect> all = {{"activation_dropout", 0},
                                                 {"add_cross_attention", false},
                                                 {"attention_dropout", 0},
                                                 {"attn_pdrop", 0},
                                                 {"dropout", 0},
                                                 {"embd_pdrop", 0},
                                                 {"layerdrop", 0},
                                                 {"pruned_heads", json::object()},
                                                 {"reorder_and_upcast_attn", false},
                                                 {"resid_pdrop", 0},
                                                 {"router_jitter_noise", 0},
                                                 {"use_mrope", false}};
  return all;
}

bool changes_nothing(const std::string& name, const json& value) {
  if (value.is_null()) return true;
  if (std::find(std::begin(kOfNoEffect), std::end(kOfNoEffect), name) != std::end(kOfNoEffect)) {
    return true;
  }
  const auto& all = without_effect();
  return std::any_of(all.begin(), all.end(), [&](const WithoutEffect& one) {
    return one.name == name && one.value == value;
  });
}

}  // namespace

ConfigFields::ConfigFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {}

void ConfigFields::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

const json* ConfigFields::find(const char* field) {
  asked_.insert(field);
  const auto found = object_.find(field);
  return found == object_.end() ? nullptr : &*found;
}

bool ConfigFields::given(const char* field) {
  const json* const value = find(field);
  return value != nullptr && !value->is_null();
}

int64_t ConfigFields::size(const char* field, int64_t most) {
  const json value = given(field) ? object_[field] : json();
  const uint64_t whole = value.is_number_unsigned() ? value.get<uint64_t>() : 0;
  if (whole >= 1 && whole <= static_cast<uint64_t>(most)) return value.get<int64_t>();
  fail(bad_config("{} is {}; it must be a whole number, 1 to {}", quoted(field),
                  value.is_null() ? "missing" : shown(value), most));
  return 0;
}

int64_t ConfigFields::size(const char* field, int64_t most, int64_t missing) {
  return given(field) ? size(field, most) : missing;
}

double ConfigFields::number(const char* field, double missing) {
  if (!given(field)) return missing;
  const json& value = object_[field];
  const double real = value.is_number() ? value.get<double>() : -1;
  if (real >= 0 && real < 1e300) return real;
  fail(bad_config("{} is {}; it must be a number of 0 or more", quoted(field), shown(value)));
  return missing;
}

double ConfigFields::positive(const char* field) {
  const double value = number(field, 0);
  if (value > 0) return value;
  fail(bad_config("{} is {}; it must be a number above 0", quoted(field),
                  given(field) ? shown(object_[field]) : "missing"));
  return 1;
}

double ConfigFields::positive(const char* field, double missing) {
  return given(field) ? positive(field) : missing;
}

bool ConfigFields::flag(const char* field, bool missing) {
  if (!given(field)) return missing;
  const json& value = object_[field];
  if (value.is_boolean()) return value.get<bool>();
  fail(bad_config("{} is {}; it must be true or false", quoted(field), shown(value)));
  return missing;
}

std::string ConfigFields::text(const char* field) {
  if (!given(field)) return "";
  const json& value = object_[field];
  return value.is_string() ? value.get<std::string>() : "";
}

int64_t ConfigFields::whole(const char* field) {
  if (!given(field)) return 0;
  const json& value = object_[field];
  constexpr int64_t kMost = int64_t{1} << 31;
  const int64_t whole = value.is_number_integer() && !(value > kMost) && !(value < -kMost)
                            ? value.get<int64_t>()
                            : kMost + 1;
  if (whole <= kMost) return whole;
  fail(bad_config("{} is {}; it must be a whole number, {} to {}", quoted(field), shown(value),
                  -kMost, kMost));
  return 0;
}

const json* ConfigFields::list(const char* field) {
  if (!given(field)) return nullptr;
  const json& value = object_[field];
  if (value.is_array()) return &value;
  fail(bad_config("{} is {}; it must be a list", quoted(field), shown(value)));
  return nullptr;
}

const json* ConfigFields::object(const char* field) {
  if (!given(field)) return nullptr;
  const json& value = object_[field];
  if (value.is_object()) return &value;
  fail(not_computed("{} is {}", quoted(field), shown(value)));
  return nullptr;
}

void ConfigFields::require_flag(const char* field, bool wanted) {
  if (flag(field, wanted) == wanted) return;
  fail(bad_config("{} is {}; only {} is known. {}", quoted(field), !wanted, wanted, kCountedBy));
}

void ConfigFields::one_of(const char* field, std::initializer_list<json> known) {
  if (!given(field)) return;
  const json& value = object_[field];
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  fail(not_computed("{} is {}", quoted(field), shown(value)));
}

void ConfigFields::known(std::initializer_list<const char*> fields) {
  for (const char* field : fields) asked_.insert(field);
}

void ConfigFields::adopt(const ConfigFields& inner) {
  fail(inner.status_);
  for (std::string& name : inner.unused()) unused_within_.push_back(std::move(name));
}

std::vector<std::string> ConfigFields::unused() const {
  std::vector<std::string> names = unused_within_;
  for (const auto& [name, value] : object_.items()) {
    if (!asked_.contains(name) && !changes_nothing(name, value)) names.push_back(where_ + name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace elixir::planner
