#include "models/train_report.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/units.h"
#include "planner/choice_names.h"

namespace elixir {
namespace {

// "nan" has no sign: some processors make the negative one.
double without_sign_of_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

// JSON has no number that is not finite.
std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
}

// Those that are not empty.
std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : separator) + part;
  }
  return text;
}

std::string three_digits(double value) {
  if (value < 1) return fmt::format("{:.3f}", value);
  if (value < 10) return fmt::format("{:.2f}", value);
  return fmt::format("{:.{}f}", value, value < 100 ? 1 : 0);
}

}  // namespace

double StepReport::rcache_hit_rate() const {
  const uint64_t accesses = stats.gathers + stats.hits;
  if (accesses == 0) return 1;
  return 1 - static_cast<double>(stats.gathers) / static_cast<double>(accesses);
}

void Pace::add(double step_ms) {
  if (steps_++ == 1) last_.clear();  // the first one
  last_.push_back(step_ms);
  if (last_.size() > kSteps) last_.pop_front();
}

double Pace::step_ms() const {
  if (last_.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(last_.begin(), last_.end(), 0.0) / static_cast<double>(last_.size());
}

std::string duration_text(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0) || seconds > kLongest) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  constexpr int64_t kManyDays = 10;  // hours say nothing beside them
  if (days >= kManyDays) return fmt::format("{} d", days);
  if (days > 0) return fmt::format("{} d {} h", days, hours % 24);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes % 60, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string progress_line(const StepReport& report, int64_t steps, double step_ms) {
  const int64_t step = report.stats.step;
  const double seconds = 1e-3 * step_ms;
  const double tokens = report.tokens_per_s * 1e-3 * report.step_ms;
  const std::string skipped =
      report.skipped_steps > 0 ? fmt::format("{} skipped", report.skipped_steps) : "";
  const std::string begin = fmt::format("step {}/{}", step, steps);
  const std::string percent = fmt::format("{} %", steps > 0 ? 100 * step / steps : 100);
  const std::string loss =
      fmt::format("loss {:.4f}", without_sign_of_nan(report.outcome.mean_loss));
  const std::string speed = fmt::format("{:.0f} tokens/s", tokens / seconds);
  const std::string pace = fmt::format("{} s/step", three_digits(seconds));
  const std::string left =
      fmt::format("{} left", duration_text(seconds * static_cast<double>(steps - step)));
  // From the widest line to the narrowest.
  const std::string lines[] = {joined({begin, percent, loss, skipped, pace, speed, left}, ", "),
                               joined({begin, percent, loss, skipped, pace, speed, left}, " "),
                               joined({begin, loss, skipped, pace, speed, left}, " "),
                               joined({begin, loss, skipped, pace, left}, " ")};
  for (const std::string& line : lines) {
    if (line.size() <= kProgressColumns) return line;
  }
  return lines[3];
}

std::string progress_details(const StepReport& report) {
  std::string text =
      fmt::format(", update {:.1f} Mparam/s, rCache hits {:.1f} %, device {} of {}",
                  report.stats.update_numel_per_s * 1e-6, 100 * report.rcache_hit_rate(),
                  format_bytes(report.device_bytes), format_bytes(report.model_state_bytes));
  const Roofline& legs = report.stats.roofline;
  if (legs.step_ms > 0) {
    text += fmt::format(", bound by {} at {:.2f} of its time", leg_name(legs.binding),
                        legs.time_over_limit);
  }
  return text;
}

std::string validation_line(const Validation& validation) {
  return fmt::format("validation: step {}, loss {:.4f}, perplexity {:.2f}", validation.step,
                     without_sign_of_nan(validation.loss),
                     without_sign_of_nan(std::exp(validation.loss)));
}

std::string validation_jsonl(const Validation& validation) {
  return fmt::format(R"({{"step": {}, "val_loss": {}, "val_perplexity": {}}})", validation.step,
                     json_number(validation.loss), json_number(std::exp(validation.loss)));
}

std::string jsonl_line(const StepReport& report) {
  const StepStats& stats = report.stats;
  const StepOutcome& outcome = report.outcome;
  const Roofline& legs = stats.roofline;
  return fmt::format(R"({{"step": {}, "loss": {}, "tokens_s": {}, "step_ms": {}, "gathers": {}, )"
                     R"("h2d_bytes": {}, "d2h_bytes": {}, "update_mparam_s": {}, )"
                     R"("early_chunks": {}, "early_hits": {}, "swing_chunks": {}, )",
                     stats.step, json_number(outcome.mean_loss), json_number(report.tokens_per_s),
                     json_number(report.step_ms), stats.gathers, stats.h2d_bytes, stats.d2h_bytes,
                     json_number(stats.update_numel_per_s * 1e-6), stats.early_chunks,
                     stats.early_hits, stats.swing_chunks) +
         fmt::format(R"("grad_norm": {}, "loss_scale": {}, "skipped": {}, )",
                     json_number(outcome.grad_norm), json_number(outcome.loss_scale),
                     outcome.skipped) +
         fmt::format(
             R"("compute_ms": {}, "h2d_ms": {}, "d2h_ms": {}, "update_ms": {}, )"
             R"("exposed_ms": {}, "binding": "{}", "time_over_limit": {}, "d2d_bytes": {}, )",
             json_number(legs.compute_ms), json_number(legs.h2d_ms), json_number(legs.d2h_ms),
             json_number(legs.update_ms), json_number(legs.exposed_ms), leg_name(legs.binding),
             json_number(legs.time_over_limit), stats.d2d_bytes) +
         fmt::format(R"("recomputed_regions": {}, "kept_bytes": {}, "activation_d2h_bytes": {}, )"
                     R"("activation_h2d_bytes": {}, )",
                     stats.recomputed_regions, stats.kept_bytes, stats.activation_d2h_bytes,
                     stats.activation_h2d_bytes) +
         fmt::format(R"("saved_step": {}, "save_stall_ms": {}}})",
                     report.saved_step ? std::to_string(*report.saved_step) : "null",
                     json_number(report.save_stall_ms));
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

Status StepLog::write_line(const std::string& text) {
  if (file_ == nullptr) return {};
  const std::string line = text + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
      std::fflush(file_.get()) == 0) {
    return {};
  }
  return error(Code::kResourceExhausted, "--jsonl {}: cannot be written: {}; make room there",
               path_, std::strerror(errno));
}

}  // namespace elixir
