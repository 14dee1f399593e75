#include "models/batch.h"

#include <ATen/Functions.h>

namespace elixir {

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
