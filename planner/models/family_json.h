#pragma once

// A config.json's readers by family, for transformer_from_config_json(). Each reads all fields of
// its family into `config`, and leaves what is wrong in `fields`.

#include <cstdint>

#include "planner/models/config_fields.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// Beyond these no model is; within them the number of elements fits 63 bits:
// layers * (4 width * all heads' + 3 width * all MLPs') < 2^60.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxMlpWidth = int64_t{1} << 24;
inline constexpr int64_t kMaxRows = int64_t{1} << 28;  // of an embedding
inline constexpr int64_t kMaxHeadWidth = int64_t{1} << 14;
inline constexpr int64_t kMaxExperts = int64_t{1} << 12;
inline constexpr int64_t kMaxHeadsWidth = int64_t{1} << 22;    // all heads together
inline constexpr int64_t kMaxExpertsWidth = int64_t{1} << 26;  // all experts together

// Into config.init_deviation. 0 is an error: transformers takes it for its default in some layers.
void read_deviation(ConfigFields& fields, const char* field, TransformerConfig& config);

// Into config.padding_token; config.vocabulary is set. `missing`: transformers' default for the
// type; -1: none. A negative token counts from the end.
void read_padding(ConfigFields& fields, int64_t missing, TransformerConfig& config);

void read_llama(ConfigFields& fields, TransformerConfig& config);
void read_mistral(ConfigFields& fields, TransformerConfig& config);
void read_mixtral(ConfigFields& fields, TransformerConfig& config);
void read_qwen2(ConfigFields& fields, TransformerConfig& config);
void read_qwen3(ConfigFields& fields, TransformerConfig& config);
void read_gemma2(ConfigFields& fields, TransformerConfig& config);
void read_gemma3(ConfigFields& fields, TransformerConfig& config);
void read_phi3(ConfigFields& fields, TransformerConfig& config);

}  // namespace elixir::planner
