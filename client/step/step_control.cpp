#include "client/step/step_control.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "client/session/session.h"

namespace elixir {
namespace {

// elixird computes a norm where a limit of it is asked for. No norm reaches this one.
constexpr double kNeverClips = std::numeric_limits<float>::max();

// Formats nothing while the condition holds: nothing allocates on the path of a step.
template <typename... Arguments>
void require(bool condition, fmt::format_string<Arguments...> otherwise, Arguments&&... arguments) {
  if (condition) return;
  throw Error(error(Code::kInvalidArgument, otherwise, std::forward<Arguments>(arguments)...));
}

bool same(const optim::AdamOptions& a, const optim::AdamOptions& b) {
  const auto all = [](const optim::AdamOptions& o) {
    return std::tie(o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.rule);
  };
  return all(a) == all(b);
}

LossScale checked_scale(const Options& options) {
  if (options.dynamic_loss_scale) {
    const DynamicLossScale& d = *options.dynamic_loss_scale;
    const bool fits = std::isfinite(d.init_scale) && d.init_scale > 0 && d.growth_factor >= 1 &&
                      d.backoff_factor > 0 && d.backoff_factor <= 1 && d.growth_interval > 0;
    require(fits && std::isfinite(d.growth_factor),
            "dynamic_loss_scale: init_scale = {}, growth_factor = {}, backoff_factor = {}, "
            "growth_interval = {}: they must be above 0, at least 1, in (0, 1] and at least 1",
            d.init_scale, d.growth_factor, d.backoff_factor, d.growth_interval);
    require(options.loss_scale == 1,
            "loss_scale = {} and dynamic_loss_scale exclude each other: set one of them",
            options.loss_scale);
    return LossScale(d);
  }
  require(std::isfinite(options.loss_scale) && options.loss_scale > 0,
          "loss_scale = {}: it must be greater than 0", options.loss_scale);
  require(options.dtype != ComputeType::kFp16 || options.loss_scale != 1,
          "FP16 without a loss scale: small gradients turn into zeros; set "
          "dynamic_loss_scale (--loss-scale dynamic), or a loss_scale other than 1");
  return LossScale(options.loss_scale);
}

}  // namespace

StepControl::StepControl(std::vector<optim::AdamOptions> groups, const Options& options,
                         UpdateMode update, uint32_t world_size)
    : groups_(std::move(groups)),
      world_size_(world_size),
      clip_norm_(options.clip_norm.value_or(options.grad_norm ? kNeverClips : 0)),
      synchronous_(update == UpdateMode::kSync),
      loss_scale_(checked_scale(options)) {
  require(!options.clip_norm || (std::isfinite(clip_norm_) && clip_norm_ > 0),
          "clip_norm = {}: it must be greater than 0", clip_norm_);
  require(options.accumulate > 0 && options.accumulate <= shm::kMaxAccumulate,
          "accumulate = {}: a step has 1 to {} backward passes", options.accumulate,
          shm::kMaxAccumulate);
  for (const optim::AdamOptions& group : groups_) first_lr_.push_back(group.lr);
  rules_.accumulate = options.accumulate;
  rules_.norms = clip_norm_ > 0 || loss_scale_.dynamic() ? 1 : 0;
  rules_.immediate = update == UpdateMode::kImmediate ? 1 : 0;
  rules_.early = update == UpdateMode::kEarly ? 1 : 0;
  require(rules_.immediate == 0 || rules_.norms == 0,
          "immediate updates with {}: that needs all gradients before the first update; use "
          "early or deferred updates (--update early)",
          options.clip_norm   ? "clip_norm"
          : options.grad_norm ? "grad_norm"
                              : "a dynamic loss scale");
}

void StepControl::set_lr(uint32_t group, double lr) {
  optim::AdamOptions options = groups_[group];
  options.lr = lr;
  set_group(group, options);
}

void StepControl::require_not_fixed() const {
  require(!immediate() || !opened_,
          "the hyperparameters of step {} change between backward() and step(): "
          "immediate updates are made with them, so set them before backward()",
          step_ + 1);
}

void StepControl::set_group(uint32_t group, const optim::AdamOptions& options) {
  ELIXIR_CHECK(group < n_groups(), "group {} of {}", group, n_groups());
  if (same(groups_[group], options)) return;
  require_not_fixed();
  groups_[group] = options;
}

uint32_t StepControl::add_group(const optim::AdamOptions& options) {
  ELIXIR_CHECK(n_groups() < shm::kMaxParamGroups, "{} groups", n_groups());
  require_not_fixed();
  const double now = groups_[0].lr;  // a schedule may have moved it
  first_lr_.push_back(now == 0 ? first_lr_[0] : first_lr_[0] * (options.lr / now));
  groups_.push_back(options);
  return n_groups() - 1;
}

void StepControl::set_all_lr(double lr) {
  set_lr(0, lr);
  for (uint32_t group = 1; group < n_groups(); ++group) {
    const double first = first_lr_[0], mine = first_lr_[group];
    set_lr(group, mine == first || first == 0 ? lr : lr * (mine / first));
  }
}

void StepControl::set_clip_norm(std::optional<double> clip_norm) {
  const double limit = clip_norm.value_or(kNeverClips);
  require(clip_norm_ > 0,
          "set_clip_norm({}), and gradients have no norm: set Options::clip_norm or "
          "Options::grad_norm when you build the optimizer",
          limit);
  require(std::isfinite(limit) && limit > 0, "clip_norm = {}: it must be greater than 0", limit);
  require_not_fixed();
  clip_norm_ = limit;
}

shm::StepRecord StepControl::next_record() const {
  shm::StepRecord record{};
  record.step = step_ + 1;
  record.rule = static_cast<uint32_t>(groups_[0].rule);
  record.grad_scale = 1.0 / (world_size_ * loss_scale_.value());
  record.clip_norm = clip_norm_;
  record.check_finite = loss_scale_.dynamic() ? 1 : 0;
  record.n_groups = n_groups();
  record.asks = asks_;
  for (uint32_t i = 0; i < n_groups(); ++i) {
    const optim::AdamOptions& h = groups_[i];
    record.groups[i] = {h.lr, h.weight_decay, {h.beta1, h.beta2, h.eps}};
  }
  return record;
}

void StepControl::posted(double loss, const double* late_loss) {
  ELIXIR_CHECK(!immediate() || opened_, "step {} is posted, and elixird does not know its groups",
               step_ + 1);
  ++step_;
  opened_ = false;
  asks_ = 0;
  scale_asked_ = false;
  Posted& posted = posted_[step_ % kKept];
  posted.loss = loss;
  posted.late_loss = late_loss;
  posted.loss_scale = loss_scale_.value();
  posted.groups = groups_;  // into the memory of those before
}

void StepControl::note_outcomes(Session& session, uint32_t up_to) {
  for (; noted_ < up_to; ++noted_) {
    const shm::StepResult result = value_or_throw(session.wait_committed(noted_ + 1));
    loss_scale_.update(result.skipped != 0);
    note_skipped(result.skipped != 0, noted_ + 1);
  }
}

// The first one and the 10th in a row, then an error. (A dynamic scale that begins too high skips a
// few by design.)
void StepControl::note_skipped(bool skipped, uint32_t step) {
  skipped_in_row_ = skipped ? skipped_in_row_ + 1 : 0;
  if (skipped_in_row_ == 1 || skipped_in_row_ == 10) {
    log_warn("step_skipped",
             "step={} in_a_row={} cause=\"a gradient is not finite\" effect=\"the step is "
             "skipped\" loss_scale={}",
             step, skipped_in_row_, loss_scale_.value());
  }
  if (skipped_in_row_ < kMaxSkippedInRow) return;
  throw Error(
      error(Code::kDiverged,
            "steps {} to {} were all skipped, since a gradient was not finite in each: look "
            "at the loss, for data or weights that are not finite; loss_scale is {}",
            step + 1 - kMaxSkippedInRow, step, loss_scale_.value()));
}

void StepControl::note_decided(Session& session) {
  count_updates(session, std::max(counted_, session.committed_step()));
  if (rules_.norms == 0) return;  // nothing is ever skipped
  note_outcomes(session, std::max(noted_, session.committed_step()));
}

// The record of what has gradients is kept for some steps only.
void StepControl::count_updates(Session& session, uint32_t up_to) {
  for (; counted_ < up_to; ++counted_) {
    if (value_or_throw(session.wait_committed(counted_ + 1)).skipped != 0) continue;
    const auto said = session.grad_groups(counted_ + 1);
    updates_.resize(said.size());
    for (size_t i = 0; i < said.size(); ++i) {
      if (said[i].load(std::memory_order_relaxed) != shm::kNoGradient) ++updates_[i];
    }
  }
}

std::vector<uint64_t> StepControl::updates(Session& session) {
  count_updates(session, step_);
  if (session.shape().tells_updates()) {
    const auto counts = session.update_counts();
    return {counts.begin(), counts.end()};
  }
  updates_.resize(session.shape().n_parameters);
  return updates_;
}

StepControl::ScaleState StepControl::scale_state(Session& session) {
  return {loss_scale(session), loss_scale_.good_steps()};
}

void StepControl::set_scale_state(const ScaleState& state) {
  loss_scale_.restore(state.value, state.good_steps);
  skipped_in_row_ = 0;
}

void StepControl::set_updates(std::vector<uint64_t> updates) {
  updates_ = std::move(updates);
  device_updates_.emplace(static_cast<uint32_t>(updates_.size()), shm::kMaxParamGroups);
  for (uint32_t i = 0; i < updates_.size(); ++i) device_updates_->set_updates(i, updates_[i]);
}

double StepControl::ask_loss_scale(Session& session) {
  scale_asked_ = true;
  return loss_scale(session);
}

void StepControl::check_scale_asked() const {
  require(scale_asked_ || loss_scale_.value() == 1,
          "the gradients of step {} are divided by a loss scale of {} that the loss was not "
          "multiplied by: call optimizer.scale(loss).backward()",
          step_ + 1, loss_scale_.value());
}

double StepControl::loss_scale(Session& session) {
  if (loss_scale_.dynamic()) note_outcomes(session, step_);
  return loss_scale_.value();
}

StepControl::Outcome StepControl::outcome(Session& session, uint32_t step) {
  if (step == 0) return {};
  ELIXIR_CHECK(step <= step_ && step + kKept > step_, "the outcome of step {}, {} was the last",
               step, step_);
  const Posted& posted = posted_[step % kKept];
  const shm::StepResult result = value_or_throw(session.wait_committed(step));
  const double loss = posted.late_loss == nullptr ? posted.loss : *posted.late_loss;
  return {result, loss, posted.loss_scale};
}

const optim::ParameterSteps& StepControl::device_updates(const Session& session, uint64_t applied,
                                                         double grad_scale) {
  ELIXIR_CHECK(step_ > 0, "no step is posted");
  const auto said = session.grad_groups(step_);
  if (!device_updates_) {
    device_updates_.emplace(static_cast<uint32_t>(said.size()), shm::kMaxParamGroups);
  }
  device_updates_->begin(posted_[step_ % kKept].groups, applied, grad_scale);
  for (uint32_t parameter = 0; parameter < said.size(); ++parameter) {
    const uint8_t group = said[parameter].load(std::memory_order_relaxed);
    if (group != shm::kNoGradient) device_updates_->update(parameter, group - 1u);
  }
  return *device_updates_;
}

const optim::ParameterSteps& StepControl::device_updates(const Session& session,
                                                         const shm::StepResult& result) {
  return device_updates(session, result.applied, result.grad_scale);
}

const optim::ParameterSteps& StepControl::device_updates_unclipped(const Session& session) {
  return device_updates(session, step_, 1.0 / (world_size_ * posted_[step_ % kKept].loss_scale));
}

}  // namespace elixir
