#include "models/train_report.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/units.h"
#include "planner/choice_names.h"

namespace elixir {
namespace {

// "nan" has no sign: some processors make the negative one.
double without_sign_of_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace

double StepReport::rcache_hit_rate() const {
  const uint64_t accesses = stats.gathers + stats.hits;
  if (accesses == 0) return 1;
  return 1 - static_cast<double>(stats.gathers) / static_cast<double>(accesses);
}

std::string progress_line(const StepReport& report, int64_t steps) {
  std::string line = fmt::format(
      "step {}/{} loss {:.4f} tokens/s {:.0f} update {:.1f} Mparam/s rCache hits {:.1f} % "
      "device {} of {}",
      report.stats.step, steps, without_sign_of_nan(report.outcome.mean_loss), report.tokens_per_s,
      report.stats.update_numel_per_s * 1e-6, 100 * report.rcache_hit_rate(),
      format_bytes(report.device_bytes), format_bytes(report.model_state_bytes));
  const Roofline& legs = report.stats.roofline;
  if (legs.step_ms > 0) {
    line += fmt::format(" bound by {} at {:.2f} of its time", leg_name(legs.binding),
                        legs.time_over_limit);
  }
  if (report.skipped_steps > 0) line += fmt::format(", {} skipped", report.skipped_steps);
  return line;
}

std::string jsonl_line(const StepReport& report) {
  const auto number = [](double value) {
    return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
  };
  const StepStats& stats = report.stats;
  const StepOutcome& outcome = report.outcome;
  const Roofline& legs = stats.roofline;
  return fmt::format(R"({{"step": {}, "loss": {}, "tokens_s": {}, "step_ms": {}, "gathers": {}, )"
                     R"("h2d_bytes": {}, "d2h_bytes": {}, "update_mparam_s": {}, )"
                     R"("early_chunks": {}, "early_hits": {}, "swing_chunks": {}, )",
                     stats.step, number(outcome.mean_loss), number(report.tokens_per_s),
                     number(report.step_ms), stats.gathers, stats.h2d_bytes, stats.d2h_bytes,
                     number(stats.update_numel_per_s * 1e-6), stats.early_chunks, stats.early_hits,
                     stats.swing_chunks) +
         fmt::format(R"("grad_norm": {}, "loss_scale": {}, "skipped": {}, )",
                     number(outcome.grad_norm), number(outcome.loss_scale), outcome.skipped) +
         fmt::format(
             R"("compute_ms": {}, "h2d_ms": {}, "d2h_ms": {}, "update_ms": {}, )"
             R"("exposed_ms": {}, "binding": "{}", "time_over_limit": {}, "d2d_bytes": {}, )",
             number(legs.compute_ms), number(legs.h2d_ms), number(legs.d2h_ms),
             number(legs.update_ms), number(legs.exposed_ms), leg_name(legs.binding),
             number(legs.time_over_limit), stats.d2d_bytes) +
         fmt::format(R"("saved_step": {}, "save_stall_ms": {}}})",
                     report.saved_step ? std::to_string(*report.saved_step) : "null",
                     number(report.save_stall_ms));
}

void LossSummary::add(double loss) {
  if (steps_ == 0) first_ = without_sign_of_nan(loss);
  ++steps_;
  last_.push_back(loss);
  if (last_.size() > kLastSteps) last_.pop_front();
}

double LossSummary::last_loss() const {
  if (last_.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double sum = std::accumulate(last_.begin(), last_.end(), 0.0);
  return without_sign_of_nan(sum / static_cast<double>(last_.size()));
}

std::string LossSummary::done_line(double seconds) const {
  return fmt::format("done: first_loss {:.3f} last_loss {:.3f} steps {} seconds {:.1f}", first_,
                     last_loss(), steps_, seconds);
}

Result<StepLog> StepLog::open(const std::string& path, bool goes_on) {
  StepLog log;
  if (path.empty()) return log;
  log.path_ = path;
  log.file_.reset(std::fopen(path.c_str(), goes_on ? "ae" : "we"));
  if (log.file_ == nullptr) {
    return error(Code::kInvalidArgument,
                 "--jsonl {}: cannot be written: {}; give a file in a folder that "
                 "exists and that you may write to",
                 path, std::strerror(errno));
  }
  return log;
}

Status StepLog::write(const StepReport& report) {
  if (file_ == nullptr) return {};
  const std::string line = jsonl_line(report) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
      std::fflush(file_.get()) == 0) {
    return {};
  }
  return error(Code::kResourceExhausted, "--jsonl {}: cannot be written: {}; make room there",
               path_, std::strerror(errno));
}

}  // namespace elixir
