#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <iostream>

#include "base/clock.h"
#include "base/inherited.h"
#include "models/plain_train.h"
#include "models/torch_settings.h"
#include "models/train_inputs.h"

// The training loop that Elixir is compared with, on the command line of elixir-train. It takes the
// model's, the data's and the optimizer's flags, --clip-norm and --accumulate among them. Flags
// that only Elixir has (the plan, --update, --trace, --checksum, and so on) change nothing here; a
// dynamic loss scale is the constant 1024 here.

namespace elixir {
namespace {

int fail(const Status& status) {
  std::cerr << "plain_gpt2: " << status.message() << "\n";
  return status.exit_code();
}

int run(const TrainOptions& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  set_up_torch(options);
  keep_freed_memory();
  const Result<TokenData> data = open_data(options);
  if (!data.ok()) return fail(data.status());
  Result<StepLog> log = StepLog::open(options.jsonl);
  if (!log.ok()) return fail(log.status());

  at::manual_seed(options.seed);  // dropout's
  const Result<std::shared_ptr<Decoder>> model =
      build_decoder(options.config, model_options(options));
  if (!model.ok()) return fail(model.status());
  LossSummary summary;
  Pace pace;
  const int64_t start_ns = monotonic_ns();
  const Status status = plain_train(**model, *data, options, [&](const StepReport& report) {
    summary.add(report.outcome.mean_loss);
    pace.add(report.step_ms);
    if (options.log_every > 0 && report.stats.step % options.log_every == 0) {
      std::cout << progress_line(report, options.steps, pace.step_ms()) << std::endl;
    }
    return log->write(report);
  });
  if (!status.ok()) return fail(status);
  std::cout << summary.done_line(seconds_since(start_ns)) << std::endl;
  return 0;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  elixir::settle_inherited();
  elixir::TrainOptions options;
  const int exit_code = elixir::parse_train_options(
      "plain_gpt2", "Trains a model with LibTorch alone, to compare Elixir with", argc, argv,
      options);
  return exit_code >= 0 ? exit_code : elixir::run(options);
}
