#pragma once

#include <functional>

#include "base/status.h"
#include "models/decoder.h"
#include "models/token_data.h"
#include "models/train_options.h"
#include "models/train_report.h"

namespace elixir {

// Called after every step. A status that is not ok ends the training and becomes its result.
using OnStep = std::function<Status(const StepReport&)>;

// Trains without Elixir, in one process: torch::optim::AdamW, all states on the device. Elixir is
// measured and tested against it, with equal model, data and options. With BF16 and FP16 the
// optimizer works on FP32 masters, which are rounded into the model after each step.
//
// Clips and accumulates according to the options. A dynamic loss scale becomes the constant 1024.
// Each backward pass takes options.batch rows: to compare with N ranks of B rows, give N * B. The
// final weights are in `model`. Errors: those of reading the data and of `on_step`.
Status plain_train(Decoder& model, const TokenData& data, const TrainOptions& options,
                   const OnStep& on_step);

// Bytes of the model and its optimizer: weights, gradients, Adam's states and masters.
uint64_t plain_state_bytes(const TrainOptions& options);

}  // namespace elixir
