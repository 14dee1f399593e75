// What a save costs a training, and how fast folders are written and read: a stack of linear layers
// on a HostDevice whose operators take their time, so that the processor is as free as beside a
// GPU. Starts elixirds of its own. The disk is that of --folder.

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/cli.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/inherited.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "client/elixir.h"
#include "shm/find_daemon.h"

namespace elixir {
namespace {

constexpr double kSpeedGoal = 0.97;   // of tokens a second, while a save is under way
constexpr double kStallGoal = 0.10;   // off the formula
constexpr double kDiskGoal = 0.90;    // of dd, of a cold read
constexpr double kBlockedGoalMs = 5;  // more in a step() than without: what a clock can tell
constexpr int kWarmUp = 3, kSteps = 12;
constexpr double kOperatorUs = 5000;
constexpr int64_t kBytesAParameter = 12, kSaveSeconds = 8;

struct Arguments {
  std::string folder = "/tmp";
  int64_t layers = 24, width = 1024;
  bool json = false, check = false;
};

// An elixird in a runtime folder of its own, ended with the object.
class OwnDaemon {
 public:
  explicit OwnDaemon(const std::vector<std::string>& arguments) {
    char path[] = "/tmp/elixir-bench-XXXXXX";
    if (::mkdtemp(path) == nullptr) throw Error(errno_status(Code::kInternal, "mkdtemp"));
    ::setenv("ELIXIR_RUNTIME_DIR", path, 1);
    folder_ = value_or_throw(shm::open_runtime_folder(path));
    pid_ =
        value_or_throw(shm::find_or_start_daemon({.own = folder_}, {.extra_arguments = arguments}))
            .pid;
  }
  ~OwnDaemon() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_.path, ignored);
  }
  OwnDaemon(const OwnDaemon&) = delete;

  // Of its own: neither shared memory nor files.
  uint64_t anonymous_bytes() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
    for (std::string word; file >> word;) {
      uint64_t kib = 0;
      if (word == "RssAnon:" && file >> kib) return kib << 10;
    }
    return 0;
  }

 private:
  shm::RuntimeFolder folder_;
  pid_t pid_ = -1;
};

struct Times {
  std::vector<double> step_ms, in_step_ms;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}
double greatest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

torch::nn::Sequential make_model(const Arguments& arguments) {
  torch::nn::Sequential model;
  for (int64_t i = 0; i < arguments.layers; ++i) {
    model->push_back(
        torch::nn::Linear(torch::nn::LinearOptions(arguments.width, arguments.width).bias(false)));
  }
  return model;
}

Options options_of(const Arguments& arguments) {
  Options options;
  options.dtype = ComputeType::kBf16;
  options.layout.chunk_numel = static_cast<uint64_t>(arguments.width * arguments.width);
  options.layout.rcache_blocks = 6;
  options.link = HostLink{.h2d_gb_s = 4, .d2h_gb_s = 4};
  options.operator_us = kOperatorUs;
  return options;
}

// Steps, while `go_on` says so, with the time of each and what of it step() took.
template <typename GoOn>
Times train(torch::nn::Sequential& model, AdamW& optimizer, int64_t width, GoOn go_on) {
  Times times;
  const at::Tensor x = at::randn({1, width}, at::kBFloat16);
  while (go_on()) {
    const int64_t begin_ns = monotonic_ns();
    optimizer.zero_grad();
    model->forward(x).to(at::kFloat).pow(2).mean().backward();
    const int64_t step_ns = monotonic_ns();
    optimizer.step();
    times.in_step_ms.push_back(1e3 * seconds_since(step_ns));
    times.step_ms.push_back(1e3 * seconds_since(begin_ns));
  }
  return times;
}

struct Saved {
  Times before, during;
  SaveReport report;
  double save_call_ms = 0;
  uint64_t own_bytes = 0;  // of elixird, more than before, at most
  double window_s = 0;     // in which states lie still
};

Saved save_while_training(const Arguments& arguments, const OwnDaemon& daemon,
                          const std::string& folder, std::optional<uint64_t> shadow_bytes) {
  torch::nn::Sequential model = make_model(arguments);
  AdamW optimizer(*model, {}, options_of(arguments));
  Saved saved;
  int left = kWarmUp;
  train(model, optimizer, arguments.width, [&] { return left-- > 0; });
  left = kSteps;
  saved.before = train(model, optimizer, arguments.width, [&] { return left-- > 0; });
  optimizer.synchronize();
  const uint64_t own_bytes = daemon.anonymous_bytes();
  const int64_t begin_ns = monotonic_ns();
  Saving saving = optimizer.save(folder, {.shadow_bytes = shadow_bytes});
  saved.save_call_ms = 1e3 * seconds_since(begin_ns);
  saved.during = train(model, optimizer, arguments.width, [&] {
    saved.own_bytes =
        std::max(saved.own_bytes, std::max(daemon.anonymous_bytes(), own_bytes) - own_bytes);
    return !saving.done();
  });
  saved.report = saving.wait();
  saved.window_s = mean(saved.before.step_ms) * 1e-3;
  return saved;
}

// As dd if=/dev/zero conv=fsync: bytes a second.
double plain_write_rate(const std::string& path, uint64_t bytes) {
  const std::vector<char> block(8 << 20, 'x');
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const int64_t begin_ns = monotonic_ns();
  for (uint64_t at = 0; at < bytes; at += block.size()) {
    if (::write(file.get(), block.data(), std::min<uint64_t>(block.size(), bytes - at)) < 0) {
      throw Error(errno_status(Code::kUnavailable, path));
    }
  }
  ::fsync(file.get());
  return static_cast<double>(bytes) / seconds_since(begin_ns);
}

// So that the next read is the disk's.
void forget_cached(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const UniqueFd file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

double plain_read_rate(const std::string& folder) {
  forget_cached(folder);
  std::vector<char> block(8 << 20);
  uint64_t bytes = 0;
  const int64_t begin_ns = monotonic_ns();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const UniqueFd file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    for (ssize_t got = 1; got > 0; bytes += static_cast<uint64_t>(std::max<ssize_t>(got, 0))) {
      got = ::read(file.get(), block.data(), block.size());
    }
  }
  return static_cast<double>(bytes) / seconds_since(begin_ns);
}

double restore_rate(const Arguments& arguments, const std::string& folder, uint64_t bytes) {
  torch::nn::Sequential model = make_model(arguments);
  AdamW optimizer(*model, {}, options_of(arguments));
  forget_cached(folder);
  const int64_t begin_ns = monotonic_ns();
  optimizer.load(folder);
  return static_cast<double>(bytes) / seconds_since(begin_ns);
}

struct Line {
  const char* what;
  double have, goal;
  bool met;
  std::string text;
};

std::vector<Line> measure(const Arguments& arguments, const std::string& folder) {
  std::vector<Line> lines;
  const auto own = [&folder](const char* name) { return folder + "/" + name; };
  // With room for every copy, on a disk that is slower than the steps: eight seconds. (One that is
  // as fast as memory takes the processors that this device is emulated on.)
  Saved roomy;
  uint64_t bytes = 0;
  {
    const auto rate = static_cast<uint64_t>(arguments.layers * arguments.width * arguments.width *
                                            kBytesAParameter / kSaveSeconds);
    const OwnDaemon daemon({"--checkpoint-rate", std::to_string(rate)});
    roomy = save_while_training(arguments, daemon, own("roomy"), uint64_t{64} << 30);
    bytes = roomy.report.bytes;
  }
  const double blocked_ms = greatest(roomy.during.in_step_ms) - greatest(roomy.before.in_step_ms);
  lines.push_back(
      {"blocked in step()", blocked_ms, kBlockedGoalMs, blocked_ms <= kBlockedGoalMs,
       fmt::format("{:.1f} ms more than before at most, save() {:.1f} ms, stall {:.1f} ms",
                   blocked_ms, roomy.save_call_ms, roomy.report.stall_s * 1e3)});
  const double speed = mean(roomy.before.step_ms) / mean(roomy.during.step_ms);
  lines.push_back({"tokens/s while saving", speed, kSpeedGoal, speed >= kSpeedGoal,
                   fmt::format("of before, {} steps of {:.0f} ms", roomy.during.step_ms.size(),
                               mean(roomy.before.step_ms))});
  // With an eighth of it, on a disk of a given rate: the formula.
  {
    const uint64_t rate = bytes / kSaveSeconds;
    const OwnDaemon daemon({"--checkpoint-rate", std::to_string(rate)});
    const Saved tight = save_while_training(arguments, daemon, own("tight"), bytes / 8);
    const double predicted_s =
        static_cast<double>(bytes - tight.report.shadow_bytes) / static_cast<double>(rate) -
        tight.window_s;
    const double off = tight.report.stall_s / predicted_s - 1;
    lines.push_back(
        {"stall against the formula", off, kStallGoal, std::abs(off) <= kStallGoal,
         fmt::format("{:.2f} s, predicted {:.2f} s", tight.report.stall_s, predicted_s)});
    const double most = static_cast<double>(tight.report.shadow_bytes + (64 << 20));
    const auto used = static_cast<double>(tight.own_bytes);
    lines.push_back({"memory beside states", used / static_cast<double>(bytes / 8), 0, used <= most,
                     fmt::format("{} more in elixird, budget {}", format_bytes(tight.own_bytes),
                                 format_bytes(tight.report.shadow_bytes))});
  }
  {
    const OwnDaemon daemon({});
    torch::nn::Sequential model = make_model(arguments);
    AdamW optimizer(*model, {}, options_of(arguments));
    double best = 0, rate = 0, plain = 0;
    for (int attempt = 0; attempt < 3 && best < kDiskGoal; ++attempt) {
      std::filesystem::remove_all(own("alone"));
      const double plain_now = plain_write_rate(own("plain"), bytes);
      std::filesystem::remove(own("plain"));
      const double now = static_cast<double>(bytes) / optimizer.save(own("alone")).wait().write_s;
      if (now / plain_now <= best) continue;
      best = now / plain_now;
      rate = now;
      plain = plain_now;
    }
    lines.push_back({"write against dd conv=fsync", best, kDiskGoal, best >= kDiskGoal,
                     fmt::format("{:.0f} MB/s, dd {:.0f} MB/s", rate * 1e-6, plain * 1e-6)});
  }
  {
    const OwnDaemon daemon({});
    double best = 0, rate = 0, plain = 0;
    for (int attempt = 0; attempt < 3 && best < kDiskGoal; ++attempt) {
      const double plain_now = plain_read_rate(own("alone"));
      const double now = restore_rate(arguments, own("alone"), bytes);
      if (now / plain_now <= best) continue;
      best = now / plain_now;
      rate = now;
      plain = plain_now;
    }
    lines.push_back({"restore against a cold read", best, kDiskGoal, best >= kDiskGoal,
                     fmt::format("{:.0f} MB/s, read {:.0f} MB/s", rate * 1e-6, plain * 1e-6)});
  }
  return lines;
}

int run(const Arguments& arguments) {
  std::string path = arguments.folder + "/elixir-checkpoint-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw Error(errno_status(Code::kBadInput, path));
  const std::vector<Line> lines = measure(arguments, path);
  std::filesystem::remove_all(path);
  bool met = true;
  nlohmann::json results = nlohmann::json::array();
  for (const Line& line : lines) {
    met = met && line.met;
    results.push_back(
        {{"what", line.what}, {"have", line.have}, {"goal", line.goal}, {"met", line.met}});
    if (arguments.json) continue;
    fmt::print("{:30} {:8.3f}  goal {:5.2f}  {}  {}\n", line.what, line.have, line.goal,
               line.met ? "met" : "MISSED", line.text);
  }
  if (arguments.json) std::cout << nlohmann::json{{"results", results}}.dump() << std::endl;
  return arguments.check && !met ? 1 : 0;
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  elixir::settle_inherited();
  CLI::App app("What a save costs a training, and how fast folders are written and read",
               "checkpoint");
  elixir::init_cli(app);
  elixir::Arguments arguments;
  app.add_option("--folder", arguments.folder, "On the disk that is to be measured")
      ->type_name("FOLDER");
  app.add_option("--layers", arguments.layers, "Linear layers")->type_name("N");
  app.add_option("--width", arguments.width, "Inputs and outputs of each")->type_name("N");
  app.add_flag("--json", arguments.json, "one JSON object: results [{what, have, goal, met}]");
  app.add_flag("--check", arguments.check, "exit with 1 when a goal is missed");
  if (const int exit_code = elixir::parse_cli(app, argc, argv); exit_code >= 0) return exit_code;
  at::set_num_threads(1);
  try {
    return elixir::run(arguments);
  } catch (const elixir::Error& failure) {
    return elixir::report_failure(app, elixir::Status(failure.code(), failure.what()));
  }
}
