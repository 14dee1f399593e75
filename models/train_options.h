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

// kAuto: a GPU where there is one.
enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };
inline constexpr EnumName<DeviceChoice> kDeviceNames[] = {
    {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};

// Which of torch's kernels attention takes where it has several: torch's own choice; flash
// attention, and never cuDNN's; cuDNN's; the plain operators. One that cannot serve (flash in FP32)
// leaves it to the next of torch's list.
enum class AttentionChoice : uint8_t { kAuto, kFlash, kCudnn, kMath };
inline constexpr EnumName<AttentionChoice> kAttentionNames[] = {{"auto", AttentionChoice::kAuto},
                                                                {"flash", AttentionChoice::kFlash},
                                                                {"cudnn", AttentionChoice::kCudnn},
                                                                {"math", AttentionChoice::kMath}};

// A forced overflow: this rank's loss goes into backward times infinity in this step, from 1.
struct Overflow {
  uint32_t rank = 0;
  int64_t step = 1;
};

// Data on which the loss is measured without training on it.
struct ValidationOptions {
  std::vector<std::string> data = {};    // empty: none
  std::vector<std::string> labels = {};  // beside `data`; empty: its tokens are the labels
  int64_t every = 100;                   // steps between measurements; 0: only after the last step
  int64_t sequences = 64;                // at most, of one measurement
};

// What elixir-train and plain_gpt2 do, as their command line says it. The defaults train gpt2-nano
// on the default text to a loss below 2.4 (900 steps of 8 sequences of 128 bytes).
struct TrainOptions {
  // How Elixir trains; plain_gpt2 takes of it what torch has, too. `dtype` is the model's;
  // `device`, `environment` and `plan` are filled in when the run begins.
  Options run;

  // Sequences are those of a rank and backward pass. Without flags the type and the length follow
  // from the model (models/train_model.h).
  planner::ModelRequest model = {
      .batch = 8, .seq = 128, .dtype = ComputeType::kFp32, .checkpoint_activations = false};
  planner::TransformerConfig config;           // of `model`
  bool model_refused = false;                  // `config` has the sizes alone, for messages
  std::vector<std::string> data;               // empty: models/default_text.h, unless needs_data
  std::vector<std::string> labels;             // beside `data`; empty: its tokens are the labels
  std::optional<TokenType> tokens_dtype = {};  // of data files without a header
  bool bytes = false;                          // text is trained on as bytes, whatever the model
  bool needs_data = false;       // the model is somebody's (--init, --config): no default text
  bool bytes_are_tokens = true;  // of the model, or of the run so far: text is trained on
  int64_t steps = 900;           // since the run's first beginning
  ValidationOptions validation = {};
  std::string freeze = {};  // parameters whose names it finds are not trained; "": none
  double dropout = 0;
  uint64_t seed = 1;
  int threads = 0;  // 0: the cores at hand, shared among the ranks of the node

  // lr: the peak; 0: the model's own.
  AdamWOptions adamw = {.lr = 0, .betas = {0.9, 0.98}, .weight_decay = 0.1};
  bool decay_all = false;  // weight decay also on norms and biases (models/weight_decay.h)
  LrSchedule lr_schedule = LrSchedule::kCosine;
  int64_t warmup_steps = 50;  // linear from 0; within the steps, not before them
  double min_lr_ratio = 0.1;  // where cosine and linear end, as a share of lr
  std::optional<Overflow> inject_overflow = {};

  std::vector<std::string> said = {};  // lines for a person: what was chosen without a flag

  DeviceChoice device_choice = DeviceChoice::kAuto;
  AttentionChoice attention = AttentionChoice::kAuto;

  CheckpointOptions checkpoints = {};

  std::string plan_file;        // of 'elixirctl plan', in the place of the planner's choice
  std::string memory_picture;   // of the plan, an SVG; "": none
  std::string predicted_trace;  // of the plan; "": none

  std::string jsonl;       // "": none
  int64_t log_every = 10;  // steps between progress lines; 0: none
  bool verbose = false;    // progress lines with details
  bool checksum = false;
  bool deterministic = false;  // operators that give the same bits every time
};

inline constexpr const char* kDefaultModel = "gpt2-nano";

// Parses and checks a command line; prints help, version or all that is wrong with it. Returns -1
// to go on, else the exit code (0, or that of the first problem). `program` is what --help calls
// it.
int parse_train_options(const char* program, const char* description, int argc,
                        const char* const* argv, TrainOptions& options);

// kInvalidArgument for each value out of its range, with the flag's name, the range and what was
// given. What depends on the model is left out if options.config is empty.
Problems check_train_options(const TrainOptions& options);

// The learning rate of step `step`, counted from 0: rises linearly over the first warmup_steps,
// then stays (constant) or falls, along half a cosine or a line, to min_lr_ratio * lr in the last
// step.
double lr_at(const TrainOptions& options, int64_t step);

}  // namespace elixir
