#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/export.h"

namespace elixir {

// The mean cross entropy of `targets` under the logits hidden . weight^T, without all of the
// logits: they exist for some rows of the weight at a time, in forward and again in backward. It is
// the loss of a language model, whose logits would be its largest activation by far.
//
//   torch.nn.functional.cross_entropy(linear(hidden, weight).float(), targets)
//
// hidden [..., width] and weight [vocabulary, width] have one floating type; targets [...] are
// int64. kIgnoredTarget, torch's ignore_index, does not count, and the mean is over the targets
// that do. There is no weight of classes and no label_smoothing. Returns a scalar in FP32 (FP64 for
// FP64); NaN if no target counts, as in torch. Under autocast it computes in autocast's type, like
// torch's linear.
//
// `slice`: how many rows of the weight at a time. 0: as many as keep their logits, and themselves,
// in FP32 within kLogitsBytes, but at least 1,024 and at most 512 slices. If all logits fit, it
// uses torch's own operators, which compute nothing twice. `softcap`: above 0, the logits are
// softcap * tanh(logits / softcap), as in Gemma 2.
//
// In FP32 the loss and the gradients are within 1e-6 of the largest of those without slices. (2e-6
// with slices of one or two rows; if a token is almost certain, those without slices are further
// off.) On a CPU they have the same bits each time. Sums over slices are FP32 (FP64 for FP64).
//
// Throws elixir::Error (kInvalidArgument) for other shapes and types, for a target outside of the
// vocabulary (on a GPU the device asserts, as for torch's operator), and in backward with
// create_graph, if the loss is in slices. Any thread.
//
// Cut Cross-Entropy (Wijmans et al., arXiv 2411.09009) and Liger (Hsu et al., arXiv 2410.10989) do
// the same. The slices are of the vocabulary, not of tokens as in Liger. So a row's gradient is
// complete in one product, and the sum over slices is as large as hidden, not as the weight. The
// sum of exponentials over slices is that of Milakov and Gimelshein, arXiv 1805.02867.
inline constexpr int64_t kIgnoredTarget = -100;
inline constexpr int64_t kLogitsBytes = int64_t{64} << 20;
ELIXIR_PUBLIC at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                              const at::Tensor& targets, int64_t slice = 0,
                                              double softcap = 0);

}  // namespace elixir
