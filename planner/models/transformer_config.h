#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/models/rotary.h"

namespace elixir::planner {

inline constexpr int64_t kMaxLayers = int64_t{1} << 12;
// Default tokens per sequence, or the model's longest sequence if that is shorter.
inline constexpr int64_t kDefaultSeq = 1024;

// kNeoX and kPhi: attention and MLP read the same input, side by side.
enum class Family { kGpt2, kOpt, kLlama, kNeoX, kPhi };

// The sizes of a decoder-only transformer of a known family. They suffice to list its parameters
// without LibTorch and without building it. So planning a model of 20 B parameters costs
// microseconds. models/ builds it.
struct TransformerConfig {
  std::string name;
  Family family = Family::kGpt2;
  int64_t vocabulary = 0;  // 256: tokens are bytes
  int64_t context = 0;     // the longest sequence, in tokens
  int64_t width = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // fewer with grouped-query attention; otherwise heads
  int64_t mlp_width = 0;
  bool tied = true;              // the output projection is the token embedding
  double norm_eps = 1e-5;        // added to the variance, or mean square, that a norm divides by
  double lr = 0;                 // default peak learning rate of training; 0: none is known
  double init_deviation = 0.02;  // standard deviation of weights that are drawn
  // The token whose row of the embedding gets no gradient from lookups (torch.nn.Embedding's
  // padding_idx); -1: none.
  int64_t padding_token = -1;

  // ---- Family::kLlama: how its relatives differ ----

  int64_t head_width = 0;          // 0: width / heads
  bool qkv_bias = false;           // Qwen 2; with o_bias, Llama's and Qwen 3's attention_bias
  bool o_bias = false;             // attention's output projection
  bool mlp_bias = false;           // Llama
  bool qk_norm = false;            // each head's queries and keys are normalised: Qwen 3, Gemma 3
  bool fused_projections = false;  // queries, keys and values in one, gate and up in one: Phi-3
  bool four_norms = false;         // norms behind attention and MLP, too: Gemma 2 and 3
  bool norms_behind = false;       // norms behind attention and MLP alone: OLMo 2
  bool whole_qk_norm = false;      // qk_norm over all heads together: OLMo 2
  bool gemma = false;  // norms' weights count from 1, embeddings are multiplied by sqrt(width)
  bool gelu = false;   // GELU instead of SiLU: Gemma
  double final_softcap = 0;      // logits are cap tanh(logits / cap): Gemma 2; 0: no cap
  double attention_softcap = 0;  // a cap for attention's scores, likewise
  double query_scalar = 0;       // scores are divided by its square root; 0: it is a head's width
  // Granite; 0: as without it. Embeddings, scores and the outputs of attention and MLP are
  // multiplied, and logits are divided.
  double embedding_scale = 0, attention_scale = 0, residual_scale = 0, logits_divisor = 0;
  Rotary rotary = {};
  std::vector<bool> rotated = {};  // by layer: it has rotary positions; empty: all have: SmolLM 3
  std::optional<Rotary> window_rotary = {};  // for layers with a window: Gemma 3; empty: rotary
  // In layers with a window, a token sees the last `window` tokens, itself included. 0: it sees
  // all.
  int64_t window = 0;
  std::vector<bool> windowed = {};             // by layer: it has the window; empty: all have it
  int64_t experts = 0, experts_per_token = 0;  // per MLP: Mixtral; 0: one MLP

  // ---- Family::kNeoX and kPhi ----

  bool parallel = true;    // false: the MLP reads what attention has added to
  bool exact_gelu = true;  // false: its approximation by tanh

  bool has_rotation(int64_t layer) const {
    return rotated.empty() || rotated[static_cast<size_t>(layer)];
  }
  // The width that is rotated, of each head.
  int64_t rotated_numel() const {
    return static_cast<int64_t>(static_cast<double>(head_numel()) * rotary.share);
  }
  bool has_window(int64_t layer) const {
    return window > 0 && (windowed.empty() || windowed[static_cast<size_t>(layer)]);
  }
  int64_t head_numel() const { return head_width != 0 ? head_width : width / heads; }

  bool operator==(const TransformerConfig&) const = default;
};

// A parameter by the name and shape that Hugging Face's implementation gives it.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  bool shared = false;  // used in two places: the tied embedding

  uint64_t numel() const;
};

// gpt2-nano, -small, -medium, -large, -xl, -1b, -4b, -10b, -15b, -20b (the last four: Elixir, arXiv
// 2212.05339 v2, table 6); opt-nano, opt-125m ... opt-175b (Zhang et al., arXiv 2205.01068, table
// 1); llama-nano, llama-100m, llama-7b, -13b, -33b, -65b (Touvron et al., arXiv 2302.13971, table
// 2), llama2-70b. The nanos have bytes as tokens and three million parameters, which two CPU cores
// train in minutes.
std::vector<std::string> transformer_names();

// Returns kInvalidArgument, with the nearest known name, if there is no such model.
Result<TransformerConfig> transformer_config(std::string_view name);

// A peak learning rate for training from scratch: GPT-3's (Brown et al., 2020, table 2.1) for the
// nearest size.
double lr_of_size(uint64_t numel);

// Reads the text of a Hugging Face config.json. Its model_type is gpt2, opt, llama, mistral,
// mixtral, qwen2, qwen3, gemma, gemma2, gemma3_text, gemma3 (its language model alone), phi, phi3,
// olmo2, smollm3, granite or gpt_neox. Returns
// kBadInput with the field that is missing or wrong, or that asks for what models/ does not
// compute. For another model_type, it names the known ones.
Result<TransformerConfig> transformer_from_config_json(std::string_view text);
// The sizes in a file that transformer_from_config_json() rejects. They are only for messages that
// name all faults at once. Empty if a size is missing or wrong.
std::optional<TransformerConfig> sizes_of_refused_config(std::string_view text);
// Whether the file's model_type is one of these. Its other fields do not matter.
bool has_known_model_type(std::string_view text);
// Names of the fields that Elixir does not use and that could change what is computed. Empty for a
// file that Elixir rejects.
std::vector<std::string> unused_config_fields(std::string_view text);

// Every parameter in the order in which models/ registers them.
std::vector<NamedShape> transformer_parameters(const TransformerConfig& config);
uint64_t transformer_numel(const TransformerConfig& config);

}  // namespace elixir::planner
