// For tests/e2e/foreign_test.py: takes a folder's weights and states, makes steps on given tokens
// with nothing random in them, and writes what the model then says.
//
//   foreign_steps FOLDER TOKENS BATCH STEPS LOGITS [SAVE]
//
// TOKENS: int64, BATCH sequences a step. LOGITS: FP32, of the first step's tokens, after the
// steps. SAVE: a checkpoint to write at the end. Prints each step's loss.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <iostream>
#include <string>
#include <vector>

#include "base/text_file.h"
#include "base/throw_error.h"
#include "client/elixir.h"
#include "models/decoder.h"
#include "planner/models/model_request.h"

namespace elixir {
namespace {

void run(const std::vector<std::string>& arguments) {
  const std::string& folder = arguments[1];
  const int64_t batch = std::stoll(arguments[3]), steps = std::stoll(arguments[4]);
  const planner::TransformerConfig config =
      value_or_throw(planner::config_of({.config_path = folder + "/config.json"}));
  std::string bytes = value_or_throw(read_text_file(arguments[2]));
  const at::Tensor all =
      at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size() / sizeof(int64_t))}, at::kLong)
          .clone()
          .reshape({std::max<int64_t>(steps, 1), batch, -1});
  std::shared_ptr<Decoder> model;
  {
    const MetaInit without_memory;
    model = value_or_throw(build_decoder(config, {}));
  }
  Options options;
  options.load_from = folder;
  AdamW optimizer(*model, {.lr = 1e-3}, options);
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor tokens = all[step];
    const int64_t length = tokens.size(1);
    const at::Tensor loss =
        model->loss(tokens.slice(1, 0, length - 1), tokens.slice(1, 1, length).contiguous());
    loss.backward();
    optimizer.step(loss.item<double>());
    fmt::print("loss {:.9f}\n", loss.item<double>());
  }
  {
    const at::NoGradGuard without_gradients;
    model->eval();
    const at::Tensor logits = model->forward(all[0]).to(at::kFloat).contiguous();
    throw_if_error(write_text_file(arguments[5],
                                   {static_cast<const char*>(logits.data_ptr()), logits.nbytes()}));
  }
  if (arguments.size() > 6) {
    const std::string config_json = value_or_throw(read_text_file(folder + "/config.json"));
    optimizer.save(arguments[6], {.files = {{"config.json", config_json}}}).wait();
  }
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  try {
    elixir::run({argv, argv + argc});
  } catch (const std::exception& failure) {
    std::cerr << "foreign_steps: " << failure.what() << "\n";
    return 1;
  }
}
