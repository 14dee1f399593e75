#include "models/validation_loss.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <span>

#include "models/evaluation.h"
#include "models/token_file.h"

namespace elixir {
namespace {

std::span<int64_t> row_of(at::Tensor& tensor, int64_t row) {
  const auto seq = static_cast<size_t>(tensor.size(1));
  return {tensor.mutable_data_ptr<int64_t>() + static_cast<size_t>(row) * seq, seq};
}

}  // namespace

Result<double> validation_loss(Decoder& model, const TokenData& data, const ValidationPass& pass) {
  ELIXIR_CHECK(pass.batch > 0 && pass.sequences > 0, "{} sequences in batches of {}",
               pass.sequences, pass.batch);
  const at::NoGradGuard no_grad;
  const Evaluation evaluation(model);
  const int64_t total = std::min(pass.sequences, data.sequences());
  double sum = 0;
  int64_t counted = 0;
  for (int64_t first = 0; first < total; first += pass.batch) {
    const int64_t rows = std::min(pass.batch, total - first);
    at::Tensor inputs = at::empty({rows, data.seq()}, at::kLong);
    at::Tensor targets = at::empty_like(inputs);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t index = (first + row) * data.sequences() / total;
      ELIXIR_RETURN_IF_ERROR(data.sequence(index, row_of(inputs, row), row_of(targets, row)));
    }
    const int64_t learnt = targets.ne(kMaskedLabel).sum().item<int64_t>();
    if (learnt == 0) continue;
    if (pass.to_device) {
      inputs = pass.to_device(inputs);
      targets = pass.to_device(targets);
    }
    sum += model.loss(inputs, targets).item<double>() * static_cast<double>(learnt);
    counted += learnt;
  }
  if (counted > 0) return sum / static_cast<double>(counted);
  return error(
      Code::kBadInput,
      "--val-labels: every label of the {} sequences is masked (-100), so there is no loss", total);
}

}  // namespace elixir
