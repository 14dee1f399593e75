// elixir-generate: continues a prompt from a checkpoint, or from a Hugging Face folder, through the
// rCache: a model of any size runs with a few chunks of it on the device.

#include <atomic>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "base/cli.h"
#include "base/compute_type_names.h"
#include "base/inherited.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/run_main.h"
#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/ranks/read_launch_environment.h"
#include "models/decoder.h"
#include "models/device_flags.h"
#include "models/generate.h"
#include "models/model_folder.h"
#include "models/program.h"
#include "models/run_start.h"
#include "models/token_text.h"
#include "models/torch_settings.h"
#include "models/train_options.h"
#include "planner/models/config_json.h"
#include "planner/models/stored_type.h"

namespace elixir {
namespace {

struct Arguments {
  std::string folder, prompt, tokens;
  GenerateOptions how = {.length = 200, .temperature = 0.8};
  DeviceChoice device = DeviceChoice::kAuto;
  std::optional<ComputeType> dtype = {};  // empty: the folder's
  std::optional<uint64_t> gpu_memory = {};
  LayoutOptions layout = {};
  int threads = 0;
};

// As CLI::Range, which takes NaN for anything.
std::string possible_temperature(const std::string& text) {
  double value = NAN;
  constexpr double kMost = 1000;
  const bool number = CLI::detail::lexical_cast(text, value);
  return number && value >= 0 && value <= kMost
             ? ""
             : fmt::format("must be a number from 0 to {}, but {} was given", kMost, text);
}

void add_options(CLI::App& app, Arguments& arguments) {
  GenerateOptions& how = arguments.how;
  app.add_option(
         "CHECKPOINT", arguments.folder,
         "A checkpoint, a folder of checkpoints (then its newest), or a Hugging Face folder")
      ->required();
  app.add_option("--prompt", arguments.prompt, "The text to continue, where tokens are bytes")
      ->type_name("TEXT");
  app.add_option("--tokens", arguments.tokens, "The tokens to continue, as 1,2,3")
      ->type_name("LIST");
  app.add_option("--length", how.length, "Tokens to add")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--temperature", how.temperature,
                 "How freely tokens are drawn; 0: the likeliest, always")
      ->type_name("T")
      ->check(possible_temperature);
  app.add_option("--top-k", how.top_k, "Draw from so many likeliest tokens (0 = all)")
      ->type_name("K")
      ->check(CLI::NonNegativeNumber);
  add_count(app, "--seed", how.seed, "Chooses what is drawn")->type_name("S");
  add_device_flags(app, arguments.device, arguments.gpu_memory, arguments.layout);
  add_threads_flag(app, arguments.threads);
  add_choice(app, "--dtype", arguments.dtype, kComputeTypeNames,
             "The type that the model computes in: auto (as it is stored), fp32, bf16, fp16")
      ->type_name("TYPE");
  app.footer(
      "If the vocabulary has 256 tokens, they are bytes: the prompt is printed, then the text that "
      "follows it. Otherwise the numbers of the tokens are printed. Each new token needs a pass "
      "over "
      "the tokens before it, as many as the model's context holds.\n"
      "Exit codes: 0 done, 2 bad command line, 3 does not fit, 4 bad checkpoint, 5 elixird "
      "unreachable.");
}

Result<std::vector<int64_t>> prompt_of(const Arguments& arguments,
                                       const planner::TransformerConfig& config) {
  if (!arguments.tokens.empty() && !arguments.prompt.empty()) {
    return error(Code::kInvalidArgument, "--prompt and --tokens: give one of them");
  }
  if (!arguments.tokens.empty()) return parse_tokens(arguments.tokens, config.vocabulary);
  if (arguments.prompt.empty())
    return error(Code::kInvalidArgument, "--prompt: nothing to continue");
  if (config.vocabulary == kBytesVocabulary) return tokens_of_text(arguments.prompt);
  return error(Code::kInvalidArgument,
               "--prompt: the tokens of {} are not bytes ({} of them), and its tokenizer is not "
               "known here: give the tokens as numbers: --tokens 1,2,3",
               config.name, config.vocabulary);
}

// The last token that is added comes from a pass over all before it.
void say_what_is_seen(int64_t n_tokens, int64_t length, const planner::TransformerConfig& config) {
  const int64_t most = config.context;
  const std::string name = printable(config.name);
  if (n_tokens > most) {
    std::cerr << fmt::format(
        "elixir-generate: the prompt has {} tokens, and {} sees {} at a time: its first {} are "
        "left out\n",
        n_tokens, name, most, n_tokens - most);
  } else if (n_tokens + length - 1 > most) {
    std::cerr << fmt::format(
        "elixir-generate: the prompt has {} tokens and {} are added, and {} sees {} at a time: "
        "from added token {} on the first ones are left out\n",
        n_tokens, length, name, most, most - n_tokens + 2);
  }
}

// Nothing of it is trained: its chunks have no gradients and no states.
std::shared_ptr<Decoder> build_frozen(const planner::TransformerConfig& config) {
  const MetaInit without_memory;
  std::shared_ptr<Decoder> model = value_or_throw(build_decoder(config, {}));
  for (const at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  return model;
}

Options run_options(const Arguments& arguments, const std::string& folder, ComputeType stored) {
  Options run;
  run.device = device_of(arguments.device);
  run.dtype = arguments.dtype.value_or(stored);
  run.device_memory_bytes = arguments.gpu_memory.value_or(0);
  run.layout = arguments.layout;
  run.load_from = folder;
  run.load_states = false;
  if (run.dtype == ComputeType::kFp16) run.dynamic_loss_scale.emplace();  // of no loss
  return run;
}

// `tries`: so often a folder was chosen.
void run(const Arguments& arguments, const std::string& folder, int tries) {
  if (folder != arguments.folder) std::cerr << printable("elixir-generate: " + folder) << "\n";
  const std::string text = value_or_throw(planner::read_config_file(folder + "/config.json"));
  const auto config = value_or_throw(planner::transformer_from_config_json(text));
  throw_if_error(check_same_model(folder, config));  // models/ computes what the file asks for
  std::vector<int64_t> tokens = value_or_throw(prompt_of(arguments, config));
  Options options =
      run_options(arguments, folder,
                  planner::stored_type(folder + "/config.json").value_or(ComputeType::kFp32));

  say_what_is_seen(static_cast<int64_t>(tokens.size()), arguments.how.length, config);
  init_log("elixir-generate", LogLevel::kWarn);
  LaunchEnvironment environment = value_or_throw(read_launch_environment());
  if (tries > 1) environment.job += fmt::format("/{}", tries);  // another one of elixird's
  options.environment = environment;
  prepare_torch(at::Device(options.device).type());
  if (options.device == "cpu") keep_freed_memory();
  const std::shared_ptr<Decoder> model = build_frozen(config);
  AdamW weights(*model, {}, options);

  std::atomic<int64_t> made{0};
  GenerateOptions how = arguments.how;
  how.to_device = [&](const at::Tensor& inputs) { return weights.to_device(inputs); };
  how.on_token = [&](int64_t) { return ++made > 0; };
  {
    const ProgressNotes notes(
        [&] { return fmt::format("{} of {} tokens", made.load(), how.length); });
    tokens = value_or_throw(generate(*model, std::move(tokens), how));
  }
  if (weights.environment().rank != 0) return;
  std::cout << shown_tokens(tokens, config.vocabulary, /*quoted=*/false) << std::endl;
}

int generate_main(int argc, const char* const* argv) {
  CLI::App app("Continues a prompt with a model that elixir-train has saved", "elixir-generate");
  init_cli(app);
  Arguments arguments;
  add_options(app, arguments);
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  return run_program("elixir-generate", "use fewer --rcache-blocks, or raise --gpu-memory", [&] {
    const LaunchEnvironment environment = value_or_throw(read_launch_environment());
    use_threads(arguments.threads, environment.local_world_size);
    use_model_folder(arguments.folder,
                     [&](const std::string& folder, int tries) { run(arguments, folder, tries); });
    return 0;
  });
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::run_main("elixir-generate", [&] { return elixir::generate_main(argc, argv); });
}
