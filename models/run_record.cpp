#include "models/run_record.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "checkpoint/json_values.h"
#include "checkpoint/stored_folder.h"

namespace elixir {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProgram = "elixir-train";
constexpr const char* kDecayAll = "all";
constexpr size_t kMostFiles = 100;  // that are named; of others the number and the bytes are kept

constexpr EnumName<RecordedData> kDataNames[] = {{"default text", RecordedData::kDefaultText},
                                                 {"text", RecordedData::kText},
                                                 {"tokens", RecordedData::kTokens}};

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

// Written by anybody. Of another program, or no record: an empty object.
Json record_of(std::string_view program) {
  const Result<Json> read = checkpoints::parse_json<Json>(program);
  const bool own = read.ok() && read->is_object() && read->value("program", Json()) == kProgram;
  return own ? *read : Json::object();
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
                       bool text, uint32_t ranks) {
  const RecordedData kind = options.data.empty() ? RecordedData::kDefaultText
                            : text               ? RecordedData::kText
                                                 : RecordedData::kTokens;
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
                       {"lr", options.adamw.lr},
                       {"decay", options.decay_all ? kDecayAll : "matrices"},
                       {"freeze", options.freeze},
                       {"lr_schedule", name_in(kLrScheduleNames, options.lr_schedule)},
                       {"warmup_steps", options.warmup_steps},
                       {"min_lr_ratio", options.min_lr_ratio},
                       {"clip_norm", clip ? Json(*clip) : Json("none")},
                       {"loss_scale", loss_scale_record(options.run)},
                       {"data_kind", name_in(kDataNames, kind)},
                       {"data", data_record(data_files)},
                       {"labels", data_record(options.labels)}};
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string recorded_program(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return "";
  const Result<std::optional<checkpoints::Manifest>> manifest =
      checkpoints::read_manifest(fd.get());
  return manifest.ok() && *manifest ? (*manifest)->program : "";
}

std::optional<double> recorded_lr(std::string_view program) {
  const Json lr = record_of(program).value("lr", Json());
  if (!lr.is_number() || !(lr.get<double>() > 0)) return std::nullopt;
  return lr.get<double>();
}

bool recorded_decay_all(std::string_view program) {
  return record_of(program).value("decay", Json(kDecayAll)) == kDecayAll;
}

std::string recorded_freeze(std::string_view program) {
  const Json freeze = record_of(program).value("freeze", Json(""));
  return freeze.is_string() ? freeze.get<std::string>() : "";
}

RecordedData recorded_data(std::string_view program) {
  const Json kind = record_of(program).value("data_kind", Json());
  for (const auto& [name, value] : kDataNames) {
    if (kind == name) return value;
  }
  return RecordedData::kNone;
}

std::vector<std::string> record_differences(std::string_view written, std::string_view now) {
  std::vector<std::string> lines;
  const Json before = record_of(written);
  const Json after = Json::parse(now, nullptr, false);
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
