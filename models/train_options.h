#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "client/device/host_link.h"
#include "client/plan/run_plan.h"
#include "client/plan/update_mode.h"
#include "models/gpt2_config.h"

namespace elixir {

enum class LrSchedule { kConstant, kCosine };

// kAuto: a GPU where there is one.
enum class DeviceChoice { kAuto, kCpu, kCuda };

// Which of torch's kernels attention takes where it has several: torch's own choice; flash
// attention, and never cuDNN's; cuDNN's; the plain operators. One that cannot serve (flash in FP32)
// leaves it to the next of torch's list.
enum class AttentionChoice { kAuto, kFlash, kCudnn, kMath };

// A forced overflow: this rank's loss goes into backward times infinity in this step, from 1.
struct Overflow {
  uint32_t rank = 0;
  int64_t step = 1;
};

// What train_gpt2 and plain_gpt2 do, as their command line says it. The defaults train `nano` on
// the default text to a loss below 2.4 (900 steps of 8 sequences of 128 bytes).
struct TrainOptions {
  Gpt2Config model;               // --model
  std::vector<std::string> data;  // empty: models/default_text.h
  int64_t steps = 900;
  int64_t batch = 8;       // sequences a rank and backward pass
  int64_t accumulate = 1;  // backward passes a step
  int64_t seq = 128;       // tokens a sequence
  ComputeType dtype = ComputeType::kFp32;
  double dropout = 0;
  bool checkpoint_activations = false;  // of each block
  uint64_t seed = 1;
  int threads = 0;  // 0: the cores at hand, shared among the ranks of the node

  double lr = 0;  // the peak; resolved to the model's own where not given
  LrSchedule lr_schedule = LrSchedule::kCosine;
  int64_t warmup_steps = 50;  // linear from 0; within the steps, not before them
  double min_lr_ratio = 0.1;  // where the cosine ends, as a share of lr
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double eps = 1e-8;
  std::optional<double> clip_norm = {};  // greatest norm of all gradients; none: not clipped
  UpdateMode update = UpdateMode::kDeferred;
  double loss_scale = 1024;         // FP16 alone; otherwise 1
  bool dynamic_loss_scale = false;  // in its place where Elixir trains; FP16 alone
  std::optional<Overflow> inject_overflow = {};

  int64_t chunk_numel = 0;    // 0: the client's choice
  int64_t rcache_blocks = 0;  // 0: the planner's choice, or a quarter of the chunks
  int workers = 0;            // 0: elixird's choice

  DeviceChoice device = DeviceChoice::kAuto;
  AttentionChoice attention = AttentionChoice::kAuto;
  uint64_t gpu_memory_bytes = 0;  // for torch and Elixir together; 0: as much as there is
  double gpu_home_share = 0;      // of the chunks
  Strategy strategy = Strategy::kNone;
  bool offload = true;                // of a strategy that has a name
  std::optional<HostLink> link = {};  // that the CPU plays; none: memory's own speed
  double operator_us = 0;             // that an operator takes at least, on the CPU
  ExchangeChoice exchange = ExchangeChoice::kAuto;

  std::string plan;             // a file of 'elixirctl plan', in the place of the planner's choice
  std::string memory_picture;   // of the plan, an SVG; "": none
  std::string predicted_trace;  // of the plan; "": none

  std::string jsonl;       // "": none
  std::string trace;       // "": none
  int64_t log_every = 10;  // steps between progress lines; 0: none
  bool checksum = false;
  bool deterministic = false;  // operators that give the same bits every time
};

// Parses and checks a command line; prints help, version or what is wrong with it. Returns -1 to
// go on, else the exit code (0, or that of kInvalidArgument). `program` is what --help calls it.
int parse_train_options(const char* program, const char* description, int argc,
                        const char* const* argv, TrainOptions& options);

// kInvalidArgument for a value out of its range, with the flag's name, the range and what was
// given.
Status check_train_options(const TrainOptions& options);

// The learning rate of step `step`, counted from 0: rises linearly over the first warmup_steps,
// then stays (constant) or falls along half a cosine to min_lr_ratio * lr in the last step.
double lr_at(const TrainOptions& options, int64_t step);

}  // namespace elixir
