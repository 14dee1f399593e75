#pragma once

// Readers of a config.json, one per family, for transformer_from_config_json(). Each reads all
// fields of its family into `config`, and leaves errors in `fields`.

#include <cstdint>

#include "planner/models/config_fields.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// Limits that no model exceeds. Within them the number of elements fits 63 bits:
// layers * (4 width * all heads' + 3 width * all MLPs') < 2^60.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxMlpWidth = int64_t{1} << 24;
inline constexpr int64_t kMaxRows = int64_t{1} << 28;  // rows of an embedding
inline constexpr int64_t kMaxHeadWidth = int64_t{1} << 14;
inline constexpr int64_t kMaxExperts = int64_t{1} << 12;
inline constexpr int64_t kMaxHeadsWidth = int64_t{1} << 22;    // all heads together
inline constexpr int64_t kMaxExpertsWidth = int64_t{1} << 26;  // all experts together

// Reads config.init_deviation. 0 is an error: in some layers transformers takes its default
// instead.
void read_deviation(ConfigFields& fields, const char* field, TransformerConfig& config);

// Reads config.padding_token. `missing`: transformers' default for the type; -1: none. A negative
// token counts from the end. REQUIRES: config.vocabulary is set.
void read_padding(ConfigFields& fields, int64_t missing, TransformerConfig& config);

void read_llama(ConfigFields& fields, TransformerConfig& config);
void read_mistral(ConfigFields& fields, TransformerConfig& config);
void read_mixtral(ConfigFields& fields, TransformerConfig& config);
void read_qwen2(ConfigFields& fields, TransformerConfig& config);
void read_qwen3(ConfigFields& fields, TransformerConfig& config);
void read_gemma(ConfigFields& fields, TransformerConfig& config);
void read_gemma2(ConfigFields& fields, TransformerConfig& config);
void read_gemma3(ConfigFields& fields, TransformerConfig& config);
void read_phi3(ConfigFields& fields, TransformerConfig& config);
void read_olmo2(ConfigFields& fields, TransformerConfig& config);
void read_smollm3(ConfigFields& fields, TransformerConfig& config);
void read_granite(ConfigFields& fields, TransformerConfig& config);
void read_neox(ConfigFields& fields, TransformerConfig& config);
void read_phi(ConfigFields& fields, TransformerConfig& config);

}  // namespace elixir::planner
