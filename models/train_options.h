#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/problems.h"
#include "base/status.h"
#include "client/plan/options.h"
#include "models/checkpoint_options.h"
#include "models/token_format.h"
#include "planner/models/model_request.h"

namespace elixir {

enum class LrSchedule : uint8_t { kConstant, kCosine, kLinear };
inline constexpr EnumName<LrSchedule> kLrScheduleNames[] = {{"constant", LrSchedule::kConstant},
                                                            {"cosine", LrSchedule::kCosine},
                                                            {"linear", LrSchedule::kLinear}};

// kAuto: a GPU if there is one, else the CPU.
enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };
inline constexpr EnumName<DeviceChoice> kDeviceNames[] = {
    {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};

// The kernel for attention, if torch has several. kAuto: torch's own choice. kFlash: flash
// attention, but never cuDNN's. kCudnn: cuDNN's. kMath: the plain operators. If a kernel is not
// possible (flash in FP32), torch takes the next one of its list.
enum class AttentionChoice : uint8_t { kAuto, kFlash, kCudnn, kMath };
inline constexpr EnumName<AttentionChoice> kAttentionNames[] = {{"auto", AttentionChoice::kAuto},
                                                                {"flash", AttentionChoice::kFlash},
                                                                {"cudnn", AttentionChoice::kCudnn},
                                                                {"math", AttentionChoice::kMath}};

// A forced overflow: in this step (counted from 1), this rank multiplies its loss by infinity
// before backward.
struct Overflow {
  uint32_t rank = 0;
  int64_t step = 1;
};

// Data for measuring the loss. It is not trained on.
struct ValidationOptions {
  std::vector<std::string> data = {};    // empty: none
  std::vector<std::string> labels = {};  // beside `data`; empty: its tokens are the labels
  int64_t every = 100;                   // steps between measurements; 0: only after the last step
  int64_t sequences = 64;                // at most, per measurement
};

// The options of elixir-train and plain_gpt2, from their command line. The defaults train gpt2-nano
// on the default text to a loss below 2.4 (900 steps of 8 sequences of 128 bytes).
struct TrainOptions {
  // How Elixir trains. plain_gpt2 uses only the options that torch has, too. `dtype` is the
  // model's. `device`, `environment` and `plan` are set when the run begins.
  Options run;

  // The batch counts the sequences of one rank in one backward pass. Without flags the type and the
  // length follow from the model (models/train_model.h).
  planner::ModelRequest model = {
      .batch = 8, .seq = 128, .dtype = ComputeType::kFp32, .checkpoint_activations = false};
  planner::TransformerConfig config;           // describes `model`
  bool model_refused = false;                  // rejected; `config` has only sizes, for messages
  std::vector<std::string> data;               // empty: models/default_text.h, unless needs_data
  std::vector<std::string> labels;             // beside `data`; empty: its tokens are the labels
  std::optional<TokenType> tokens_dtype = {};  // for data files without a header
  bool bytes = false;                          // trains on text as bytes, whatever the model
  bool needs_data = false;       // no default text: the model is the user's (--init, --config)
  bool bytes_are_tokens = true;  // the model's, or the run's so far: trains on text
  int64_t steps = 900;           // the whole run, restarts included
  ValidationOptions validation = {};
  std::string freeze = {};  // freezes parameters with matching names; "": none
  double dropout = 0;
  uint64_t seed = 1;
  int threads = 0;  // 0: the available cores, shared by the node's ranks

  // lr: the peak; 0: the model's own.
  AdamWOptions adamw = {.lr = 0, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  bool decay_all = false;  // weight decay also on norms and biases (models/weight_decay.h)
  LrSchedule lr_schedule = LrSchedule::kCosine;
  int64_t warmup_steps = 50;  // linear from 0; within the steps, not before them
  double min_lr_ratio = 0.1;  // final rate of cosine and linear, as a share of lr
  std::optional<Overflow> inject_overflow = {};

  std::vector<std::string> said = {};  // lines for the user: choices made without a flag

  DeviceChoice device_choice = DeviceChoice::kAuto;
  AttentionChoice attention = AttentionChoice::kAuto;

  CheckpointOptions checkpoints = {};

  std::string plan_file;        // from 'elixirctl plan'; replaces the planner's choice
  bool no_plan = false;         // the planner is not asked
  std::string memory_picture;   // path for an SVG of the plan; "": none
  std::string predicted_trace;  // path for a trace of the plan; "": none

  std::string jsonl;       // "": none
  int64_t log_every = 10;  // steps between progress lines; 0: none
  bool verbose = false;    // progress lines with details
  bool checksum = false;
  bool deterministic = false;  // operators that give the same bits every time
};

inline constexpr const char* kDefaultModel = "gpt2-nano";

// Parses and checks a command line. Prints the help, the version or all problems. Returns -1 if the
// program must continue, else the exit code (0, or that of the first problem). `program` is its
// name in --help.
int parse_train_options(const char* program, const char* description, int argc,
                        const char* const* argv, TrainOptions& options);

// Gives kInvalidArgument for each value that is out of range, with the flag's name, the range and
// the value. If options.config is empty, leaves out the checks that depend on the model.
Problems check_train_options(const TrainOptions& options);

// The learning rate of step `step`, counted from 0. It rises linearly over the first warmup_steps.
// Then it stays (constant) or falls along half a cosine or a line, to min_lr_ratio * lr in the last
// step.
double lr_at(const TrainOptions& options, int64_t step);

}  // namespace elixir
