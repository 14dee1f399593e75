#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "client/plan/step_report.h"

namespace elixir {

// The report of one step, as this rank saw it. A program without Elixir's client (plain_gpt2)
// leaves the defaults in fields that it does not have.
struct StepReport {
  StepStats stats = {};                      // roofline.step_ms 0: not measured
  StepOutcome outcome = {.grad_norm = NAN};  // mean_loss: over the global batch
  double tokens_per_s = 0;                   // all ranks together
  double step_ms = 0;
  int64_t skipped_steps = 0;       // in the run so far
  uint64_t device_bytes = 0;       // the rCache and all else that Elixir holds on the device
  uint64_t model_state_bytes = 0;  // weights, gradients and optimizer states of the whole model
  std::optional<int64_t> saved_step = {};  // step of the last complete checkpoint
  double save_stall_ms = NAN;              // time that updates waited for it

  double rcache_hit_rate() const;  // in [0, 1]; 1 when nothing was used
};

// The speed of a run: the mean of its last kSteps steps. The first step after a start does not
// count, because it also sets things up.
class Pace {
 public:
  static constexpr size_t kSteps = 50;

  void add(double step_ms);
  double step_ms() const;  // NaN before the first step

 private:
  int64_t steps_ = 0;
  std::deque<double> last_;
};

// One line for people, without an end of line. It has at most kProgressColumns columns for
// reasonable numbers (up to a million steps). The number of skipped steps appears if it is not 0:
//   step 10/900, 1 %, loss 3.4211, 2 skipped, 0.115 s/step, 8920 tokens/s, 1:42 left
//   `step_ms`: the run's pace, from which s/step, tokens/s and the time left follow.
inline constexpr size_t kProgressColumns = 80;
std::string progress_line(const StepReport& report, int64_t steps, double step_ms);

// The details that --verbose adds to the progress line:
//   , update 310.2 Mparam/s, rCache hits 61.3 %, device 3.11 MiB of 49.71 MiB, bound by h2d at 1.04
//   of its time
std::string progress_details(const StepReport& report);

// "1:42", "12:40:05", "3 d 4 h" or "12 d".
std::string duration_text(double seconds);

// One JSON object without an end of line: step loss tokens_s step_ms gathers h2d_bytes d2h_bytes
// update_mparam_s grad_norm loss_scale skipped compute_ms h2d_ms d2h_ms update_ms exposed_ms
// binding time_over_limit d2d_bytes saved_step save_stall_ms. Numbers have all their digits. A
// number that is not finite becomes null. `skipped` is true or false, `binding` a leg's name.
std::string jsonl_line(const StepReport& report);

// The mean loss of the validation data after a step.
struct Validation {
  int64_t step = 0;
  double loss = 0;
};

// "validation: step 100, loss 2.3102, perplexity 10.08", and its JSON object: step val_loss
// val_perplexity. Perplexity is exp(loss).
std::string validation_line(const Validation& validation);
std::string validation_jsonl(const Validation& validation);

// Collects the losses for the final line.
class LossSummary {
 public:
  static constexpr size_t kLastSteps = 20;

  void add(double loss);
  double first_loss() const { return first_; }
  // The mean of the last kLastSteps losses, or of all if there are fewer. NaN: there is none.
  double last_loss() const;
  int64_t steps() const { return steps_; }

  // "done: first_loss 5.545 last_loss 2.310 steps 900 seconds 128.0". REQUIRES: steps() > 0.
  std::string done_line(double seconds) const;

 private:
  double first_ = std::numeric_limits<double>::quiet_NaN();
  int64_t steps_ = 0;
  std::deque<double> last_;
};

// The --jsonl file. When write() returns, the line is in the file. So the file of a killed run ends
// with its last whole step, or with the step before that: elixir-train writes a step's line in the
// next step.
class StepLog {
 public:
  // Replaces an existing file, or appends to it if `goes_on` (the run resumes). If a step then has
  // two lines, the later one counts. "" makes a log that writes nothing. kInvalidArgument: the file
  // cannot be written.
  static Result<StepLog> open(const std::string& path, bool goes_on = false);
  Status write(const StepReport& report) { return write_line(jsonl_line(report)); }
  Status write(const Validation& validation) { return write_line(validation_jsonl(validation)); }

 private:
  Status write_line(const std::string& line);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace elixir
