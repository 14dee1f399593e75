// A run that keeps itself: saved while it trains, it goes on from the last whole checkpoint when it
// is started again.

#include <elixir/elixir.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <optional>

int main(int argc, char** argv) try {
  namespace fs = std::filesystem;
  const fs::path folder = argc > 1 ? argv[1] : "checkpoints";
  fs::create_directories(folder);
  std::string last;  // a folder has its name only once it is whole
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!fs::is_regular_file(entry.path() / "elixir.json")) continue;
    last = std::max(last, entry.path().string());
  }

  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 512), torch::nn::GELU(),
                              torch::nn::Linear(512, 1));
  elixir::Options options;
  options.load_from = last;  // "": the module's own values
  elixir::AdamW optimizer(*model, {.lr = 1e-3}, options);
  std::cout << "begins after step " << optimizer.steps() << std::endl;

  std::optional<elixir::Saving> saving;
  for (uint64_t step = optimizer.steps() + 1; step <= 50; ++step) {
    torch::manual_seed(static_cast<uint64_t>(step));  // the same data after a restart
    const torch::Tensor x = torch::randn({32, 64});
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::mse_loss(model->forward(x), (x.sum(1, /*keepdim=*/true) / 8).sin());
    loss.backward();
    optimizer.step(loss);
    if (step % 10 != 0) continue;
    char name[32];
    std::snprintf(name, sizeof name, "step-%09d", static_cast<int>(step));
    saving = optimizer.save((folder / name).string(), {.keep = 2});  // returns; training goes on
  }
  if (saving) {
    const elixir::SaveReport report = saving->wait();
    std::cout << report.path << ": " << report.bytes << " bytes, updates waited " << report.stall_s
              << " s for it" << std::endl;
  }
} catch (const elixir::Error& failure) {
  std::cerr << "checkpoints: " << failure.what() << std::endl;
  return failure.exit_code();
}
