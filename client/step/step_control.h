#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/plan/loss_scale.h"
#include "client/plan/options.h"
#include "optim_cpu/parameter_steps.h"
#include "shm/layout.h"
#include "shm/step_rules.h"

namespace elixir {

class Session;

// The requests of steps to elixird, and their outcomes: hyperparameters by group, loss scale,
// clipping. Every rank has the same values, because outcomes are elixird's or all ranks agree on
// them. Owned by the thread that steps.
class StepControl {
 public:
  // A training that skips this many steps in a row has failed: its data or weights are not finite.
  static constexpr uint32_t kMaxSkippedInRow = 100;

  // `groups` holds the hyperparameters of each group of parameters; all have one update rule.
  // `update` is the mode that was chosen for options.update. Throws kInvalidArgument for values
  // that contradict each other.
  StepControl(std::vector<optim::AdamOptions> groups, const Options& options, UpdateMode update,
              uint32_t world_size);

  const shm::StepRules& rules() const { return rules_; }
  bool immediate() const { return rules_.immediate != 0; }
  bool opens_steps() const { return rules_.opens_steps(); }
  bool synchronous() const { return synchronous_; }

  uint32_t step() const { return step_; }  // the last one posted
  double lr(uint32_t group) const { return groups_[group].lr; }
  uint32_t n_groups() const { return static_cast<uint32_t>(groups_.size()); }
  void set_lr(uint32_t group, double lr);
  // Sets group 0's rate. The other groups keep their initial ratio to it.
  void set_all_lr(double lr);
  const optim::AdamOptions& group(uint32_t group) const { return groups_[group]; }
  void set_group(uint32_t group, const optim::AdamOptions& options);
  // Returns the group's number. REQUIRES: there are fewer than shm::kMaxParamGroups.
  uint32_t add_group(const optim::AdamOptions& options);
  // The limit of the gradients' norm from the next step on; empty: none. Throws kInvalidArgument if
  // the norm is not known, since neither clipping nor grad_norm was asked for at the start.
  void set_clip_norm(std::optional<double> clip_norm);

  // The record of the next step. With immediate updates it is fixed when the first gradient comes
  // in, even if that gradient is dropped again. From then until posted(), set_lr, set_group and
  // add_group throw.
  shm::StepRecord next_record() const;
  void opened_next() { opened_ = true; }
  bool opened() const { return opened_; }

  // Asks all ranks with the next step: bits of shm::Ask.
  void ask(uint64_t asks) { asks_ |= asks; }

  // Call it when the next step was posted with this loss. If `late_loss` is not null, it will hold
  // the loss once the step is committed.
  void posted(double loss, const double* late_loss);

  // The factor for the losses of the current step. A dynamic one waits for the step before. Throws
  // kDiverged after kMaxSkippedInRow skipped steps in a row.
  double loss_scale(Session& session);
  // loss_scale() for the program, which multiplies a loss by it. Afterwards check_scale_asked()
  // passes.
  double ask_loss_scale(Session& session);
  // Call it before a step with gradients is posted. Throws kInvalidArgument for a scale other than
  // 1 that nobody has asked for since the last step, because no loss was multiplied by it.
  void check_scale_asked() const;
  // Takes the outcomes of decided steps, and logs skipped ones. It does not block. REQUIRES: you
  // call it in each step, before the step is posted.
  void note_decided(Session& session);

  // ---- for checkpoints; only while all posted steps are decided; the first two wait for that ----

  struct ScaleState {
    double value = 1;
    uint32_t good_steps = 0;  // steps without a skip since its last change
  };
  ScaleState scale_state(Session& session);
  // By trained parameter, how often it has been updated. Skipped steps do not count, nor steps in
  // which no rank had its gradient.
  std::vector<uint64_t> updates(Session& session);
  // A dynamic scale continues from this state; a constant one stays.
  void set_scale_state(const ScaleState& state);
  void set_updates(std::vector<uint64_t> updates);

  // The outcome of a posted step, one of the last two. Waits for the other ranks.
  struct Outcome {
    shm::StepResult result{};
    double loss = 0;        // this rank's
    double loss_scale = 1;  // the step's
  };
  Outcome outcome(Session& session, uint32_t step);

  // The terms with which chunks placed on the GPU are updated in the last posted step, which was
  // not skipped. Call it once per step, because it counts updates. Valid until the next step.
  const optim::ParameterSteps& device_updates(const Session& session,
                                              const shm::StepResult& result);
  // device_updates() for a step that nothing can skip or clip, so that its outcome is known
  // beforehand.
  const optim::ParameterSteps& device_updates_unclipped(const Session& session);

 private:
  const optim::ParameterSteps& device_updates(const Session& session, uint64_t applied,
                                              double grad_scale);
  void require_not_fixed() const;
  void note_outcomes(Session& session, uint32_t up_to);
  void count_updates(Session& session, uint32_t up_to);
  void note_skipped(bool skipped, uint32_t step);

  std::vector<optim::AdamOptions> groups_;
  std::vector<double> first_lr_;  // by group: the initial rates, which give the ratios to group 0
  const uint32_t world_size_;
  double clip_norm_;  // 0: norms are not known
  const bool synchronous_;
  shm::StepRules rules_;
  LossScale loss_scale_;
  bool opened_ = false;  // elixird knows the next step's hyperparameters
  uint32_t step_ = 0;
  uint64_t asks_ = 0;         // since the last step
  bool scale_asked_ = false;  // since the last step
  uint32_t noted_ = 0;        // the outcomes up to this step went into loss_scale_
  uint32_t skipped_in_row_ = 0;
  std::vector<uint64_t> updates_;  // by trained parameter, through step counted_
  uint32_t counted_ = 0;
  // By step % kKept.
  static constexpr uint32_t kKept = 4;
  struct Posted {
    double loss = 0;
    const double* late_loss = nullptr;
    double loss_scale = 1;
    std::vector<optim::AdamOptions> groups;
  };
  Posted posted_[kKept];
  std::optional<optim::ParameterSteps> device_updates_;  // made when first needed
};

}  // namespace elixir
