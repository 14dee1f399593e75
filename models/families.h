#pragma once

// The families of decoders. REQUIRES for all: the configuration is of the family and its sizes fit,
// as build_decoder() checks.

#include <memory>

#include "models/decoder.h"

namespace elixir {

// GPT-2 (Radford et al., 2019), as Hugging Face's GPT2LMHeadModel. The output projection is tied to
// the token embedding. Initial values are GPT-2's: weights normal with config.init_deviation,
// divided by sqrt(2 * layers) for weights that write to the residual stream; biases 0, norms 1.
std::shared_ptr<Decoder> make_gpt2(const planner::TransformerConfig& config,
                                   const DecoderOptions& options);

// OPT (Zhang et al., arXiv 2205.01068), as Hugging Face's OPTForCausalLM. It has norms before
// attention and MLP, ReLU, and learned positions counted from 2. The output projection is tied to
// the token embedding. Weights are normal with config.init_deviation, biases 0.
std::shared_ptr<Decoder> make_opt(const planner::TransformerConfig& config,
                                  const DecoderOptions& options);

// Llama (Touvron et al., arXiv 2302.13971), as Hugging Face's LlamaForCausalLM. It has RMS norms
// before attention and MLP, rotary positions and SwiGLU. If the configuration has fewer heads of
// keys and values, groups of queries share them (Llama 2, arXiv 2307.09288). Weights are normal
// with config.init_deviation. Its papers use no dropout; the option acts on embeddings and
// residuals.
//
// Also its relatives, which TransformerConfig tells apart. Mistral, Qwen 2 and 3, Gemma 1 to 3
// (arXiv 2403.08295, 2408.00118, 2503.19786), OLMo 2 (2501.00656), SmolLM 3 and Granite were
// compared with transformers. Mixtral and Phi-3 exist for their profiles, and their values were not
// compared.
std::shared_ptr<Decoder> make_llama(const planner::TransformerConfig& config,
                                    const DecoderOptions& options);

// GPT-NeoX (Black et al., arXiv 2204.06745; Pythia), as Hugging Face's GPTNeoXForCausalLM, and Phi
// (arXiv 2306.11644), as its PhiForCausalLM. Attention and MLP read the residual stream side by
// side, and rotary positions turn a part of each head. Weights are normal with
// config.init_deviation, biases 0. Dropout acts on embeddings and residuals.
std::shared_ptr<Decoder> make_parallel(const planner::TransformerConfig& config,
                                       const DecoderOptions& options);

}  // namespace elixir
