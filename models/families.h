#pragma once

// The families of decoders. build_decoder() has seen to it that a configuration is the family's and
// that its sizes fit.

#include <memory>

#include "models/decoder.h"

namespace elixir {

// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel, the output projection tied to the
// token embedding. Initialised as GPT-2: weights normal with config.init_deviation, those that
// write to the residual stream with it over sqrt(2 * layers), biases 0, norms 1.
std::shared_ptr<Decoder> make_gpt2(const planner::TransformerConfig& config,
                                   const DecoderOptions& options);

// OPT (Zhang et al., arXiv 2205.01068) as Hugging Face's OPTForCausalLM: norms before attention and
// MLP, ReLU, learned positions counted from 2, the output projection tied to the token embedding.
// Weights are normal with config.init_deviation, biases 0.
std::shared_ptr<Decoder> make_opt(const planner::TransformerConfig& config,
                                  const DecoderOptions& options);

// Llama (Touvron et al., arXiv 2302.13971) as Hugging Face's LlamaForCausalLM: RMS norms before
// attention and MLP, rotary positions, SwiGLU, queries in groups that share keys and values where
// the configuration has fewer of those (Llama 2, arXiv 2307.09288). Weights are normal with
// config.init_deviation. Its papers use no dropout; the option acts on embeddings and residuals.
//
// Also its relatives, as TransformerConfig tells them apart: Mistral, Qwen 2 and 3, Gemma 2 and 3
// (arXiv 2408.00118, 2503.19786), compared with transformers; and Mixtral and Phi-3, for their
// profiles, whose values nobody compared with their originals'.
std::shared_ptr<Decoder> make_llama(const planner::TransformerConfig& config,
                                    const DecoderOptions& options);

}  // namespace elixir
