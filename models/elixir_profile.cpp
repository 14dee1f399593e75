// elixir-profile: what one step of a known model does, as JSON. Runs it on the meta device: nothing
// is computed, and a model of any size takes well under a second.

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "base/cli.h"
#include "base/compute_type_names.h"
#include "base/inherited.h"
#include "base/run_main.h"
#include "client/profile/profile.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/scalar_type.h"
#include "models/decoder.h"
#include "models/freeze.h"
#include "planner/models/model_request.h"
#include "planner/profile_json.h"

namespace elixir {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 31;  // above, sizes of tensors overflow

struct Request {
  planner::ModelRequest model;
  std::string freeze;
  std::string device = "cuda";
};

Result<planner::ModelProfile> profile(const Request& request) {
  const Result<planner::TransformerConfig> config = planner::config_of(request.model);
  if (!config.ok()) return config.status();
  const int64_t batch = request.model.batch;
  const int64_t seq =
      request.model.seq != 0 ? request.model.seq : std::min(planner::kDefaultSeq, config->context);
  if (seq > config->context) {
    return error(Code::kInvalidArgument, "--seq {}: {} has a context of {} tokens", seq,
                 config->name, config->context);
  }
  if (batch > kMostTokens / seq) {
    return error(Code::kInvalidArgument,
                 "--batch {} of --seq {}: at most {} tokens a step are possible", batch, seq,
                 kMostTokens);
  }
  const MetaInit without_memory;
  const Result<std::shared_ptr<Decoder>> model =
      build_decoder(*config, {.dtype = scalar_type(request.model.dtype),
                              .checkpoint_activations = request.model.checkpoint_activations});
  if (!model.ok()) return model.status();
  if (!request.freeze.empty()) ELIXIR_RETURN_IF_ERROR(freeze(**model, request.freeze));
  const at::Tensor tokens = at::empty({batch, seq}, at::TensorOptions(at::kLong).device(at::kMeta));
  const at::Tensor targets = at::empty_like(tokens);
  return profile_step(
      tensors_of(**model), [&](at::Device) { return (*model)->loss(tokens, targets); },
      {.model = config->name,
       .tokens = static_cast<uint64_t>(batch * seq),
       .dtype = request.model.dtype,
       .target = request.device == "cpu" ? ProfileTarget::kCpu : ProfileTarget::kCuda});
}

int profile_main(int argc, const char* const* argv) {
  CLI::App app("Prints what one step of a model does, without running it, as JSON.",
               "elixir-profile");
  init_cli(app);
  Request request;
  planner::ModelRequest& model = request.model;
  app.add_option("--model", model.model, "A known model, as gpt2-10b or opt-175b");
  app.add_option("--config", model.config_path, "A Hugging Face config.json");
  app.add_option("--batch", model.batch, "Sequences a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--seq", model.seq, "Tokens of each")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--layers", model.layers, "In place of the model's own; 0: its own")
      ->check(CLI::Range(int64_t{0}, planner::kMaxLayers));
  app.add_option("--freeze", request.freeze,
                 "Parameters whose names this extended regular expression finds are not trained");
  add_choice(app, "--dtype", model.dtype, kComputeTypeNames,
             "bf16, fp16 or fp32: parameters and activations");
  app.add_option("--device", request.device, "Whose kernels take the memory: cuda or cpu")
      ->check(CLI::IsMember({"cuda", "cpu"}));
  app.add_flag("--checkpoint-activations,!--no-checkpoint-activations",
               model.checkpoint_activations,
               "Activations of a block are computed again in backward (default)");
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  const Result<planner::ModelProfile> result = profile(request);
  if (!result.ok()) return report_failure(app, result.status());
  std::cout << planner::to_json(*result) << "\n";
  return 0;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::run_main("elixir-profile", [&] { return elixir::profile_main(argc, argv); });
}
