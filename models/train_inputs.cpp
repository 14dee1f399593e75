#include "models/train_inputs.h"

#include <ATen/Functions.h>

#include "models/default_text.h"

namespace elixir {

DecoderOptions model_options(const TrainOptions& options) {
  return {.seed = options.seed,
          .dropout = options.dropout,
          .dtype = scalar_type(options.run.dtype),
          .checkpoint_activations = options.model.checkpoint_activations};
}

Result<TokenData> open_data(const TrainOptions& options) {
  std::vector<std::string> files = options.data;
  if (files.empty()) {
    Result<std::vector<std::string>> sources = default_text();
    if (!sources.ok()) return sources.status();
    files = std::move(*sources);
  }
  return TokenData::open({.files = std::move(files),
                          .vocabulary = options.config.vocabulary,
                          .seq = options.model.seq,
                          .seed = options.seed});
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
