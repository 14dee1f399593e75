#include "models/run_health.h"

#include <fmt/format.h>

namespace elixir {

std::string RunHealth::text() const {
  const std::string steps =
      bad_steps_ == 1 ? fmt::format("step {}", last_)
                      : fmt::format("the {} steps {} to {}", bad_steps_, first_bad_, last_);
  if (!finite_loss_) {
    return fmt::format("the loss was {} in {}", std::isnan(loss_) ? "nan" : "infinite", steps);
  }
  return fmt::format("a gradient was not finite in {}, whose updates were skipped", steps);
}

}  // namespace elixir
