#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/export.h"

namespace elixir {

// The mean cross entropy of `targets` under the logits hidden . weight^T, without the logits: they
// exist for some rows of the weight at a time, in forward and, computed again, in backward. It is
// the loss of a language model, whose logits would be its largest activation by far.
//
//   torch.nn.functional.cross_entropy(linear(hidden, weight).float(), targets)
//
// hidden [..., width] and weight [vocabulary, width], of one floating type; targets [...] int64, of
// which kIgnoredTarget, torch's ignore_index, does not count; the mean is over those that do. There
// is no weight of classes and no label_smoothing. Returns a scalar in FP32 (FP64 for FP64); NaN
// where no target counts, as torch. Under autocast it computes in autocast's type, as torch's
// linear.
//
// `slice`: how many rows of the weight at a time; 0: as many as keep their logits, and themselves,
// in FP32 within kLogitsBytes, but at least 1,024 and at most 512 slices; and torch's own
// operators, which compute nothing twice, where all logits fit. `softcap`: above 0, the logits are
// softcap * tanh(logits / softcap), as Gemma 2's.
//
// In FP32 the loss and the gradients are the whole's within 1e-6 of the largest (2e-6 with slices
// of one or two rows; where a token is almost certain the whole itself is further off), and on a
// CPU have the same bits each time. Sums over slices are FP32 (FP64 for FP64).
//
// Throws elixir::Error (kInvalidArgument) for other shapes and types, for a target outside of the
// vocabulary (on a GPU the device asserts, as for torch's operator), and in backward with
// create_graph, where the loss is in slices. Any thread.
//
// Cut Cross-Entropy (Wijmans et al., arXiv 2411.09009) and Liger (Hsu et al., arXiv 2410.10989) do
// the same. The slices are of the vocabulary, not of tokens as Liger's: a row's gradient is
// complete in one product, and what is summed up over slices is as large as hidden, not as the
// weight. The sum of exponentials over slices is that of Milakov and Gimelshein, arXiv 1805.02867.
inline constexpr int64_t kIgnoredTarget = -100;
inline constexpr int64_t kLogitsBytes = int64_t{64} << 20;
ELIXIR_PUBLIC at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                              const at::Tensor& targets, int64_t slice = 0,
                                              double softcap = 0);

}  // namespace elixir
