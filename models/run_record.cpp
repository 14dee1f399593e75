#include "models/run_record.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "checkpoint/json_values.h"

namespace elixir {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProgram = "elixir-train";
constexpr size_t kMostFiles = 100;  // that are named; of others the number and the bytes are kept

int64_t file_bytes(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 ? about.st_size : -1;
}

// By name and size: the same text may lie elsewhere.
Json data_record(const std::vector<std::string>& files) {
  Json named = Json::array();
  int64_t bytes = 0;
  for (const std::string& path : files) {
    const int64_t own = file_bytes(path);
    bytes += own;
    if (named.size() < kMostFiles) named.push_back({path.substr(path.rfind('/') + 1), own});
  }
  return {{"files", files.size()}, {"bytes", bytes}, {"named", std::move(named)}};
}

std::string shown(const Json& value) {
  constexpr size_t kLongest = 60;
  if (value.is_object() && value.contains("files") && value.contains("bytes")) {
    return shown(value["files"]) + " files of " + shown(value["bytes"]) + " bytes";
  }
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (value.is_string()) text = text.substr(1, text.size() - 2);  // a line has quotes around it
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

Json loss_scale_record(const Options& run) {
  if (run.dtype != ComputeType::kFp16) return "none";
  return run.dynamic_loss_scale ? Json("dynamic") : Json(run.loss_scale);
}

}  // namespace

std::string run_record(const TrainOptions& options, const std::vector<std::string>& data_files,
                       uint32_t ranks) {
  const std::optional<double>& clip = options.run.clip_norm;
  const Json record = {{"program", kProgram},
                       {"model", options.config.name},
                       {"seed", options.seed},
                       {"steps", options.steps},
                       {"batch", options.model.batch},
                       {"seq", options.model.seq},
                       {"accumulate", options.run.accumulate},
                       {"ranks", ranks},
                       {"dropout", options.dropout},
                       {"lr_schedule", name_in(kLrScheduleNames, options.lr_schedule)},
                       {"warmup_steps", options.warmup_steps},
                       {"min_lr_ratio", options.min_lr_ratio},
                       {"clip_norm", clip ? Json(*clip) : Json("none")},
                       {"loss_scale", loss_scale_record(options.run)},
                       {"data", data_record(data_files)},
                       {"labels", data_record(options.labels)}};
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> record_differences(std::string_view written, std::string_view now) {
  std::vector<std::string> lines;
  const Result<Json> read = checkpoints::parse_json<Json>(written);  // by anybody
  const Json before = read.ok() ? *read : Json();
  const Json after = Json::parse(now, nullptr, false);
  if (!before.is_object() || before.value("program", Json()) != kProgram) return lines;
  for (const auto& [field, value] : after.items()) {
    const auto found = before.find(field);
    if (found == before.end() || *found == value) continue;
    const std::string old_text = shown(*found), new_text = shown(value);
    lines.push_back(old_text == new_text
                        ? fmt::format("{} differs in the names or sizes of its files", field)
                        : fmt::format("{} was {} and is {}", field, old_text, new_text));
  }
  return lines;
}

}  // namespace elixir
