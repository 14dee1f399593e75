#include "models/train_words.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"

namespace elixir {
namespace {

// The value whose name was given.
template <typename Value>
Status choose(const char* flag, std::string_view given,
              std::span<const std::pair<const char*, Value>> known, Value& chosen) {
  std::string names;
  for (size_t i = 0; i < known.size(); ++i) {
    if (given == known[i].first) {
      chosen = known[i].second;
      return {};
    }
    names += (i == 0 ? "" : i + 1 == known.size() ? " or " : ", ") + std::string(known[i].first);
  }
  return error(Code::kInvalidArgument, "{}: '{}' is not known; use {}", flag, given, names);
}

constexpr std::pair<const char*, DeviceChoice> kDevices[] = {
    {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};
constexpr std::pair<const char*, AttentionChoice> kAttentions[] = {
    {"auto", AttentionChoice::kAuto},
    {"flash", AttentionChoice::kFlash},
    {"cudnn", AttentionChoice::kCudnn},
    {"math", AttentionChoice::kMath}};
constexpr std::pair<const char*, LrSchedule> kSchedules[] = {{"constant", LrSchedule::kConstant},
                                                             {"cosine", LrSchedule::kCosine}};
constexpr std::pair<const char*, UpdateMode> kUpdates[] = {{"deferred", UpdateMode::kDeferred},
                                                           {"immediate", UpdateMode::kImmediate},
                                                           {"sync", UpdateMode::kSync}};

// A parser's result, its error led by the flag.
template <typename Value>
Status take(const char* flag, Result<Value> parsed, Value& value) {
  if (!parsed.ok()) {
    return error(Code::kInvalidArgument, "{}: {}", flag, parsed.status().message());
  }
  value = std::move(*parsed);
  return {};
}

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
  const bool scaled = options.dtype == ComputeType::kFp16;
  if (!scaled) options.loss_scale = 1;
  options.dynamic_loss_scale = scaled && word == "dynamic";
  if (word == "dynamic") return {};
  const auto numbers = parse_list<double>(word);
  if (!numbers || numbers->size() != 1 || !(numbers->front() > 0) ||
      !std::isfinite(numbers->front())) {
    return error(Code::kInvalidArgument,
                 "--loss-scale must be greater than 0, or dynamic, but {} was given", word);
  }
  if (scaled) options.loss_scale = numbers->front();
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
  const bool played = !word.empty() || options.operator_us > 0;
  if (played && options.device == DeviceChoice::kCuda) {
    return error(Code::kInvalidArgument,
                 "{}: links and operators are played on the CPU, and --device cuda was given: "
                 "leave out one of them",
                 word.empty() ? "--operator-us" : "--link-gb-s");
  }
  if (played) options.device = DeviceChoice::kCpu;
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
  options.link = {.h2d_gb_s = numbers->at(0),
                  .d2h_gb_s = numbers->at(1),
                  .joint_gb_s = numbers->size() == 3 ? numbers->at(2) : 0};
  return {};
}

Status understand_attention(const std::string& word, TrainOptions& options) {
  ELIXIR_RETURN_IF_ERROR(
      choose<AttentionChoice>("--attention", word, kAttentions, options.attention));
  if (options.attention != AttentionChoice::kCudnn || !options.deterministic) return {};
  return error(Code::kInvalidArgument,
               "--attention cudnn gives other bits in every run, and --deterministic was given: "
               "leave out one of them");
}

// Where states live: by a strategy's name, by --offload or --no-offload, or by their share.
Status understand_homes(const TrainWords& words, TrainOptions& options) {
  if (words.offload && words.no_offload) {
    return error(Code::kInvalidArgument, "--offload and --no-offload: give one of them");
  }
  options.offload = !words.no_offload;
  if (options.strategy != Strategy::kNone) {
    if (!words.gpu_home_share && options.rcache_blocks == 0) return {};
    return error(
        Code::kInvalidArgument,
        "--strategy {} says how many blocks there are and where states live: leave out {}, "
        "or use --strategy auto",
        words.strategy, words.gpu_home_share ? "--gpu-home-share" : "--rcache-blocks");
  }
  options.gpu_home_share = words.gpu_home_share.value_or(words.no_offload ? 1 : 0);
  if ((words.offload && options.gpu_home_share != 0) ||
      (words.no_offload && options.gpu_home_share != 1)) {
    return error(Code::kInvalidArgument,
                 "{} means --gpu-home-share {}, but {} was given: leave out one of them",
                 words.offload ? "--offload" : "--no-offload", words.offload ? 0 : 1,
                 options.gpu_home_share);
  }
  return {};
}

}  // namespace

Status understand(const TrainWords& words, TrainOptions& options) {
  ELIXIR_RETURN_IF_ERROR(take("--model", gpt2_config(words.model), options.model));
  ELIXIR_RETURN_IF_ERROR(take("--dtype", parse_compute_type(words.dtype), options.dtype));
  ELIXIR_RETURN_IF_ERROR(
      choose<LrSchedule>("--lr-schedule", words.lr_schedule, kSchedules, options.lr_schedule));
  ELIXIR_RETURN_IF_ERROR(choose<UpdateMode>("--update", words.update, kUpdates, options.update));
  if (!words.gpu_memory.empty()) {
    ELIXIR_RETURN_IF_ERROR(
        take("--gpu-memory", parse_bytes(words.gpu_memory), options.gpu_memory_bytes));
  }
  ELIXIR_RETURN_IF_ERROR(take("--exchange", parse_exchange(words.exchange), options.exchange));
  ELIXIR_RETURN_IF_ERROR(take("--strategy", parse_strategy(words.strategy), options.strategy));
  ELIXIR_RETURN_IF_ERROR(choose<DeviceChoice>("--device", words.device, kDevices, options.device));
  ELIXIR_RETURN_IF_ERROR(understand_attention(words.attention, options));
  if (options.lr == 0) options.lr = options.model.lr;
  ELIXIR_RETURN_IF_ERROR(understand_homes(words, options));
  ELIXIR_RETURN_IF_ERROR(check_train_options(options));
  ELIXIR_RETURN_IF_ERROR(understand_loss_scale(words.loss_scale, options));
  ELIXIR_RETURN_IF_ERROR(understand_overflow(words.inject_overflow, options));
  return understand_link(words.link, options);
}

}  // namespace elixir
