#include "models/train_inputs.h"

#include <ATen/Functions.h>

#include "client/tensors/linear_cross_entropy.h"

namespace elixir {
namespace {

static_assert(kMaskedLabel == kIgnoredTarget);

}  // namespace

DecoderOptions model_options(const TrainOptions& options) {
  return {.seed = options.seed,
          .dropout = options.dropout,
          .dtype = scalar_type(options.run.dtype),
          .checkpoint_activations = options.model.checkpoint_activations};
}

Result<Batch> read_batch(const TokenData& data, int64_t step, int64_t first_row, int64_t rows) {
  Batch batch = {at::empty({rows, data.seq()}, at::kLong),
                 at::empty({rows, data.seq()}, at::kLong)};
  const auto span = [](at::Tensor& tensor) {
    return std::span(tensor.data_ptr<int64_t>(), static_cast<size_t>(tensor.numel()));
  };
  ELIXIR_RETURN_IF_ERROR(data.fill(step, first_row, span(batch.inputs), span(batch.targets)));
  return batch;
}

}  // namespace elixir
