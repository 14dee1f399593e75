#include "models/train_words.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "client/plan/strategy_names.h"
#include "models/open_data.h"
#include "models/written_folders.h"

namespace elixir {
namespace {

// Numbers separated by commas; nothing for anything else.
template <typename Number>
std::optional<std::vector<Number>> parse_list(std::string_view text) {
  std::vector<Number> numbers;
  const char *begin = text.data(), *const end = begin + text.size();
  while (true) {
    Number number{};
    const auto [after, fault] = std::from_chars(begin, end, number);
    if (fault != std::errc()) return std::nullopt;
    numbers.push_back(number);
    if (after == end) return numbers;
    if (*after != ',') return std::nullopt;
    begin = after + 1;
  }
}

// With other types than FP16 it changes nothing, but must make sense.
Status understand_loss_scale(const std::string& word, TrainOptions& options) {
  const bool scaled = options.run.dtype == ComputeType::kFp16;
  if (word == "dynamic") {
    if (scaled) options.run.dynamic_loss_scale = DynamicLossScale{};
    return {};
  }
  const auto numbers = parse_list<double>(word);
  if (!numbers || numbers->size() != 1 || !(numbers->front() > 0) ||
      !std::isfinite(numbers->front())) {
    return error(Code::kInvalidArgument,
                 "--loss-scale must be greater than 0, or dynamic, but {} was given", word);
  }
  if (scaled) options.run.loss_scale = numbers->front();
  return {};
}

Status understand_overflow(const std::string& word, TrainOptions& options) {
  if (word.empty()) return {};
  const auto numbers = parse_list<int64_t>(word);
  if (!numbers || numbers->size() != 2 || numbers->front() < 0 || numbers->front() > UINT32_MAX ||
      numbers->back() < 1 || numbers->back() > options.steps) {
    return error(Code::kInvalidArgument,
                 "--inject-overflow must be RANK,STEP with ranks from 0 and steps from 1 to {}, "
                 "but {} was given",
                 options.steps, word);
  }
  options.inject_overflow = {static_cast<uint32_t>(numbers->front()), numbers->back()};
  return {};
}

Status understand_link(const std::string& word, TrainOptions& options) {
  const bool emulated = !word.empty() || options.run.operator_us > 0;
  if (emulated && options.device_choice == DeviceChoice::kCuda) {
    return error(Code::kInvalidArgument,
                 "{}: links and operators are emulated on the CPU, and --device cuda was given: "
                 "leave out one of them",
                 word.empty() ? "--operator-us" : "--link-gb-s");
  }
  if (emulated) options.device_choice = DeviceChoice::kCpu;
  if (word.empty()) return {};
  const auto numbers = parse_list<double>(word);
  const bool fits = numbers && (numbers->size() == 2 || numbers->size() == 3) &&
                    numbers->at(0) > 0 && numbers->at(1) > 0 && numbers->back() >= 0;
  bool finite = fits;
  for (size_t i = 0; fits && i < numbers->size(); ++i) finite &= std::isfinite(numbers->at(i));
  if (!finite) {
    return error(Code::kInvalidArgument,
                 "--link-gb-s must be H2D,D2H or H2D,D2H,JOINT, in GB/s and greater than 0 (JOINT "
                 "0: no limit), but {} was given",
                 word);
  }
  options.run.link = {.h2d_gb_s = numbers->at(0),
                      .d2h_gb_s = numbers->at(1),
                      .joint_gb_s = numbers->size() == 3 ? numbers->at(2) : 0};
  return {};
}

Status understand_attention(const TrainOptions& options) {
  if (options.attention != AttentionChoice::kCudnn || !options.deterministic) return {};
  return error(Code::kInvalidArgument,
               "--attention cudnn gives other bits in every run, and --deterministic was given: "
               "leave out one of them");
}

// Where states live: by a strategy's name, by --offload or --no-offload, or by their share.
Status understand_placement(const TrainWords& words, Options& run) {
  if (words.offload && words.no_offload) {
    return error(Code::kInvalidArgument, "--offload and --no-offload: give one of them");
  }
  run.offload = !words.no_offload;
  std::optional<double>& share = run.layout.gpu_state_share;
  if (run.strategy != Strategy::kNone) {
    if (!share && run.layout.rcache_blocks == 0) return {};
    return error(
        Code::kInvalidArgument,
        "--strategy {} says how many blocks there are and where states live: leave out {}, "
        "or use --strategy auto",
        name_in(kStrategyNames, run.strategy), share ? "--gpu-state-share" : "--rcache-blocks");
  }
  if ((words.offload || words.no_offload) && !share) share = words.no_offload ? 1 : 0;
  const double given = share.value_or(0);
  if ((words.offload && given != 0) || (words.no_offload && given != 1)) {
    return error(Code::kInvalidArgument,
                 "{} means --gpu-state-share {}, but {} was given: leave out one of them",
                 words.offload ? "--offload" : "--no-offload", words.offload ? 0 : 1, given);
  }
  return {};
}

}  // namespace

void understand(const TrainWords& words, TrainOptions& options, Problems& problems) {
  understand_model(words.model, options, problems);
  options.run.device_memory_bytes = words.gpu_memory.value_or(0);
  problems.add(understand_attention(options));
  problems.add(understand_placement(words, options.run));
  problems.add(check_train_options(options));
  problems.add(understand_loss_scale(words.loss_scale, options));
  problems.add(understand_overflow(words.inject_overflow, options));
  problems.add(understand_link(words.link, options));
  if (problems.empty()) return;
  // Otherwise the run looks at them.
  problems.add(check_data(options));
  problems.add(check_weights(options));
  problems.add(check_written(options));
}

}  // namespace elixir
