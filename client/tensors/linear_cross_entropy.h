#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/export.h"

namespace elixir {

// The mean cross entropy of `targets` under the logits hidden . weight^T, without holding all
// logits at once. They exist only for some rows of the weight at a time, in forward and again in
// backward. It is the loss of a language model. All logits would be the model's largest activation
// by far.
//
//   torch.nn.functional.cross_entropy(linear(hidden, weight).float(), targets)
//
// hidden [..., width] and weight [vocabulary, width] have one floating type; targets [...] are
// int64. Targets with kIgnoredTarget, torch's ignore_index, do not count, and the mean is over the
// others. There are no class weights and no label_smoothing. Returns a scalar in FP32 (FP64 for
// FP64); NaN if no target counts, as in torch. Under autocast it computes in autocast's type, like
// torch's linear.
//
// `slice` is the number of rows of the weight at a time. 0: as many rows as have logits, and are
// themselves, within kLogitsBytes in FP32, but at least 1,024 rows and at most 512 slices. If all
// logits fit, it uses torch's own operators, which compute nothing twice. If `softcap` is above 0,
// the logits are softcap * tanh(logits / softcap), as in Gemma 2.
//
// In FP32 the loss and the gradients differ from those without slices by at most 1e-6 of the
// largest value. (With slices of one or two rows it is 2e-6. If a token is almost certain, it is
// more, because the values without slices are less exact.) On a CPU, repeated calls give the same
// bits. Sums over slices are FP32 (FP64 for FP64).
//
// Throws elixir::Error (kInvalidArgument) for other shapes and types, and for a target outside of
// the vocabulary. (On a GPU the device asserts, as for torch's operator.) It also throws in
// backward with create_graph, if the loss is in slices. Any thread.
//
// Cut Cross-Entropy (Wijmans et al., arXiv 2411.09009) and Liger (Hsu et al., arXiv 2410.10989) do
// the same. This function slices the vocabulary, not the tokens as Liger does. So a row's gradient
// is complete in one product, and the sum over slices is as large as hidden, not as the weight. The
// sum of exponentials over slices follows Milakov and Gimelshein, arXiv 1805.02867.
inline constexpr int64_t kIgnoredTarget = -100;
inline constexpr int64_t kLogitsBytes = int64_t{64} << 20;
ELIXIR_PUBLIC at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                              const at::Tensor& targets, int64_t slice = 0,
                                              double softcap = 0);

}  // namespace elixir
