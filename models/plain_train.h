#pragma once

#include <functional>

#include "base/status.h"
#include "models/decoder.h"
#include "models/token_data.h"
#include "models/train_options.h"
#include "models/train_report.h"

namespace elixir {

// Called after every step; a status that is not ok ends the training with it.
using OnStep = std::function<Status(const StepReport&)>;

// The same model, data and options trained by one process without Elixir: torch::optim::AdamW,
// every state on the device. With BF16 and FP16 the optimizer works on FP32 masters that are
// rounded into the model after each step. What Elixir is measured against and tested against.
//
// Clips and accumulates as the options say; a dynamic loss scale is the constant 1024.
// Takes options.batch rows a backward pass: to compare with N ranks of B, give N * B. Weights end
// in `model`. Errors are those of reading the data and of `on_step`.
Status plain_train(Decoder& model, const TokenData& data, const TrainOptions& options,
                   const OnStep& on_step);

// What `model` and its optimizer hold, in bytes: weights, gradients, Adam's states and masters.
uint64_t plain_state_bytes(const TrainOptions& options);

}  // namespace elixir
