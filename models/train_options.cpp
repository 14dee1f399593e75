#include "models/train_options.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/name_pattern.h"
#include "planner/choice_names.h"

namespace elixir {
namespace {

Status at_least(const char* flag, int64_t least, int64_t given) {
  if (given >= least) return {};
  return error(Code::kInvalidArgument, "{} must be at least {}, but {} was given", flag, least,
               given);
}

Status within(const char* flag, bool inside, const char* range, double given) {
  if (inside && std::isfinite(given)) return {};
  if (inside)
    return error(Code::kInvalidArgument, "{} must be finite, but {} was given", flag, given);
  return error(Code::kInvalidArgument, "{} must be {}, but {} was given", flag, range, given);
}

Status check_sequence(const TrainOptions& options) {
  const planner::TransformerConfig& config = options.config;
  if (config.context == 0) return {};
  if (options.model.seq <= config.context) return {};
  return error(Code::kInvalidArgument,
               "--seq {} is longer than the context of {} tokens of {}; give --seq {} or a model "
               "with a longer context",
               options.model.seq, config.context, config.name, config.context);
}

Status needs_validation_data(const char* flag) {
  return error(Code::kInvalidArgument, "{} needs --val-data FILE, the text that it is about", flag);
}

Problems check_validation(const ValidationOptions& validation) {
  Problems problems;
  problems.add(within("--val-every",
                      validation.every >= 0 && validation.every <= static_cast<int64_t>(kMostSteps),
                      "in [0, 2^32 - 1]", static_cast<double>(validation.every)));
  problems.add(at_least("--val-sequences", 1, validation.sequences));
  if (!validation.data.empty()) return problems;
  const ValidationOptions unchanged;
  if (!validation.labels.empty()) problems.add(needs_validation_data("--val-labels"));
  if (validation.every != unchanged.every) problems.add(needs_validation_data("--val-every"));
  if (validation.sequences != unchanged.sequences) {
    problems.add(needs_validation_data("--val-sequences"));
  }
  return problems;
}

}  // namespace

Problems check_train_options(const TrainOptions& o) {
  // A batch whose tokens or a tensor whose size overflows is refused here, long before memory is.
  constexpr int64_t kMostTokens = int64_t{1} << 31;
  const double share = o.run.layout.gpu_state_share.value_or(0);
  const bool lr_known = o.config.context > 0 || o.adamw.lr != 0;
  Problems problems;
  for (const Status& status : {
           at_least("--steps", 1, o.steps),
           within("--steps", o.steps <= static_cast<int64_t>(kMostSteps), "at most 2^32 - 1",
                  static_cast<double>(o.steps)),
           at_least("--batch", 1, o.model.batch),
           at_least("--seq", 1, o.model.seq),
           check_sequence(o),
           within("--batch", o.model.batch <= kMostTokens / std::max<int64_t>(o.model.seq, 1),
                  "at most 2^31 tokens", static_cast<double>(o.model.batch)),
           within("--accumulate", o.run.accumulate >= 1 && o.run.accumulate <= kMaxAccumulate,
                  "in [1, 65536]", static_cast<double>(o.run.accumulate)),
           within("--dropout", o.dropout >= 0 && o.dropout < 1, "in [0, 1)", o.dropout),
           within("--lr", o.adamw.lr > 0 || !lr_known, "greater than 0", o.adamw.lr),
           at_least("--warmup-steps", 0, o.warmup_steps),
           within("--min-lr-ratio", o.min_lr_ratio >= 0 && o.min_lr_ratio <= 1, "in [0, 1]",
                  o.min_lr_ratio),
           within("--weight-decay", o.adamw.weight_decay >= 0, "0 or greater",
                  o.adamw.weight_decay),
           within("--beta1", o.adamw.betas.first >= 0 && o.adamw.betas.first < 1, "in [0, 1)",
                  o.adamw.betas.first),
           within("--beta2", o.adamw.betas.second >= 0 && o.adamw.betas.second < 1, "in [0, 1)",
                  o.adamw.betas.second),
           within("--eps", o.adamw.eps > 0, "greater than 0", o.adamw.eps),
           within("--clip-norm", o.run.clip_norm.value_or(1) > 0, "greater than 0",
                  o.run.clip_norm.value_or(1)),
           within("--gpu-state-share", share >= 0 && share <= 1, "in [0, 1]", share),
           within("--operator-us", o.run.operator_us >= 0, "0 or greater", o.run.operator_us),
           at_least("--log-every", 0, o.log_every),
       }) {
    problems.add(status);
  }
  problems.add(check_validation(o.validation));
  if (!o.freeze.empty()) problems.add(NamePattern::compile("--freeze", o.freeze).status());
  problems.add(check_checkpoint_options(o.checkpoints));
  return problems;
}

double lr_at(const TrainOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.adamw.lr * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  if (options.lr_schedule == LrSchedule::kConstant) return options.adamw.lr;
  const int64_t falling_steps = options.steps - 1 - options.warmup_steps;
  if (falling_steps <= 0) return options.adamw.lr;
  const double progress = std::min(
      1.0, static_cast<double>(step - options.warmup_steps) / static_cast<double>(falling_steps));
  const double left = options.lr_schedule == LrSchedule::kLinear
                          ? 1 - progress
                          : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return options.adamw.lr * (options.min_lr_ratio + (1 - options.min_lr_ratio) * left);
}

}  // namespace elixir
