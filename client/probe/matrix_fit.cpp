#include <algorithm>

#include "base/check.h"
#include "client/probe/device_rates.h"

namespace elixir::probe {

// 1/rate = a + b/t is a line in 1/t. A weight of rate^2 makes its errors those of the rate itself,
// relative to it.
MatrixRate fit_matrix_rate(std::span<const TimedProduct> products) {
  ELIXIR_CHECK(products.size() >= 2, "a rate and where it is half, from {} products",
               products.size());
  double weights = 0, x_sum = 0, y_sum = 0, xx_sum = 0, xy_sum = 0, best = 0;
  for (const TimedProduct& product : products) {
    const double x = 1 / product.tokens, y = 1 / product.flops;
    const double weight = product.flops * product.flops;
    weights += weight;
    x_sum += weight * x;
    y_sum += weight * y;
    xx_sum += weight * x * x;
    xy_sum += weight * x * y;
    best = std::max(best, product.flops);
  }
  const double b = (weights * xy_sum - x_sum * y_sum) / (weights * xx_sum - x_sum * x_sum);
  const double a = (y_sum - b * x_sum) / weights;
  // No smaller rate with fewer tokens, or one that would grow for ever: what was seen, for all.
  if (!(a > 0) || !(b > 0)) return {best * 1e-12, 0};
  return {1e-12 / a, b / a};
}

}  // namespace elixir::probe
