#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/nearest.h"
#include "base/progress.h"
#include "checkpoint/details.h"
#include "checkpoint/file_plan.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/listing.h"
#include "checkpoint/new_folder.h"
#include "checkpoint/value_check.h"
#include "models/adam_file.h"
#include "models/convert.h"
#include "models/import_model.h"
#include "models/torch_file.h"
#include "optim_cpu/master.h"
#include "planner/models/config_json.h"

namespace elixir {
namespace {

using checkpoints::StateKind;
using checkpoints::StoredFolder;
using checkpoints::StoredTensor;

constexpr double kLockTimeoutS = 10;
constexpr uint64_t kMostSmallFileBytes = uint64_t{64} << 20;

// Writes a file from its beginning to its end and hashes its pieces.
class PieceWriter {
 public:
  PieceWriter(int fd, std::string name, std::atomic<uint64_t>& written)
      : fd_(fd), written_(written) {
    file_.name = std::move(name);
    buffer_.reserve(checkpoints::kMaxPieceBytes);
  }

  uint64_t at() const { return file_.bytes; }
  Status append(std::span<const std::byte> bytes);
  Result<checkpoints::ManifestFile> finish();

 private:
  Status flush();

  const int fd_;
  std::atomic<uint64_t>& written_;
  checkpoints::ManifestFile file_;
  std::vector<std::byte> buffer_;
};

Status PieceWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t room = checkpoints::kMaxPieceBytes - buffer_.size();
    const size_t taken = std::min<size_t>(room, bytes.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
    file_.bytes += taken;
    bytes = bytes.subspan(taken);
    if (buffer_.size() == checkpoints::kMaxPieceBytes) ELIXIR_RETURN_IF_ERROR(flush());
  }
  return Status();
}

Status PieceWriter::flush() {
  if (buffer_.empty()) return Status();
  file_.pieces.push_back({.bytes = buffer_.size(), .xxh3 = checkpoints::xxh3_of(buffer_)});
  ELIXIR_RETURN_IF_ERROR(checkpoints::write_all(fd_, buffer_, file_.bytes - buffer_.size()));
  written_ += buffer_.size();
  buffer_.clear();
  return Status();
}

Result<checkpoints::ManifestFile> PieceWriter::finish() {
  ELIXIR_RETURN_IF_ERROR(flush());
  return std::move(file_);
}

// A parameter that the optimizer trains: where its values come from.
struct ImportedParameter {
  const StoredTensor* param = nullptr;
  AdamStates adam;
};

// A run of a file's bytes, by where it begins.
struct Item {
  enum class What : uint8_t { kArray, kStep, kExtra } what = What::kArray;
  uint32_t number = 0;  // of the parameter or the extra tensor
  StateKind kind = StateKind::kParam;
};

class Importer {
 public:
  Importer(const ImportRequest& request, ImportModel model, TorchFile file)
      : request_(request),
        folder_(std::move(model.folder)),
        renamed_(std::move(model.renamed)),
        file_(std::move(file)) {}

  Status run();

 private:
  Status match();
  Status check_shapes(const ImportedParameter& trained) const;
  Status plan();
  Status write(checkpoints::NewFolder& output, checkpoints::Manifest all);
  Status write_small_files(checkpoints::NewFolder& output) const;
  Result<checkpoints::ManifestFile> write_file(checkpoints::NewFolder& output, uint32_t number);
  Status write_item(const Item& item, PieceWriter& writer) const;
  Status write_master(const StoredTensor& param, StateKind kind, PieceWriter& writer) const;
  Status write_moment(const ImportedParameter& trained, StateKind kind, PieceWriter& writer) const;
  Status write_extra(const StoredTensor& tensor, PieceWriter& writer) const;
  checkpoints::Manifest manifest() const;

  const ImportRequest& request_;
  const StoredFolder folder_;
  const std::map<std::string, std::string> renamed_;  // ImportModel's
  const TorchFile file_;
  AdamFile adam_;
  std::vector<ImportedParameter> trained_;
  std::vector<const StoredTensor*> extras_;
  checkpoints::FilePlan plan_;
  std::vector<std::map<uint64_t, Item>> items_;  // by file, by offset
  std::atomic<uint64_t> written_ = 0;
};

Status Importer::check_shapes(const ImportedParameter& trained) const {
  const StoredTensor& param = *trained.param;
  if (!optim::is_value_type(param.dtype->name)) {
    return error(Code::kBadInput, "{} is of type {}, and is trained in {}", folder_.place_of(param),
                 param.dtype->name, request_.torch_file);
  }
  for (const pickle::Value* const state : {trained.adam.exp_avg, trained.adam.exp_avg_sq}) {
    if (state == nullptr) continue;
    const std::vector<int64_t>& sizes = file_.document().tensor(*state).sizes;
    if (sizes == param.shape) continue;
    return error(Code::kBadInput,
                 "{}: a state of '{}' has a shape of [{}], the parameter in {} one of [{}]: the "
                 "names are in another order, or it is another model's",
                 request_.torch_file, param.name, fmt::join(sizes, ", "), folder_.path,
                 fmt::join(param.shape, ", "));
  }
  return Status();
}

Status Importer::match() {
  const Result<std::vector<std::string>> given = read_names(request_.names_file);
  if (!given.ok()) return given.status();
  const std::vector<std::string> order = model_order(folder_);
  const auto named = [&](const Status& status) {
    return error(status.code(), "{}: {}", request_.torch_file, status.message());
  };
  Result<AdamFile> adam =
      adam_of(file_, {.names = given->empty() ? order : *given, .given = !given->empty()});
  if (!adam.ok()) return named(adam.status());
  Result<std::map<std::string, AdamStates>> states = by_own_names(adam->parameters, renamed_);
  if (!states.ok()) return named(states.status());
  std::map<std::string, AdamStates>& left = *states;
  adam_ = std::move(*adam);
  std::map<std::string, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : folder_.model) by_name.emplace(tensor.name, &tensor);
  std::vector<std::string> names = order;
  for (const StoredTensor& tensor : folder_.model) names.push_back(tensor.name);
  for (const std::string& name : names) {
    const auto tensor = by_name.find(name);
    if (tensor == by_name.end()) continue;
    if (const auto of = left.find(name); of != left.end()) {
      trained_.push_back({.param = tensor->second, .adam = of->second});
      ELIXIR_RETURN_IF_ERROR(check_shapes(trained_.back()));
      ELIXIR_RETURN_IF_ERROR(check_stored_values(folder_, *tensor->second, request_.type));
      left.erase(of);
    } else {
      extras_.push_back(tensor->second);
    }
    by_name.erase(tensor);
  }
  if (left.empty()) return Status();
  std::vector<std::string> known;
  for (const StoredTensor& tensor : folder_.model) known.push_back(tensor.name);
  const std::string nearest = nearest_name(left.begin()->first, known);
  return error(Code::kBadInput, "{} has states of '{}', a tensor that {} does not have{}",
               request_.torch_file, left.begin()->first, folder_.path,
               nearest.empty() ? "" : "; the nearest name is '" + nearest + "'");
}

Status Importer::plan() {
  std::vector<checkpoints::SavedParameter> parameters;
  for (const ImportedParameter& trained : trained_) {
    // Each a chunk of its own: the order is all that matters.
    parameters.push_back({.name = trained.param->name,
                          .shape = trained.param->shape,
                          .chunk = static_cast<uint32_t>(parameters.size()),
                          .numel = trained.param->numel()});
  }
  std::vector<checkpoints::ExtraTensor> extras;
  for (const StoredTensor* const extra : extras_) {
    extras.push_back({extra->name, extra->dtype, extra->shape});
  }
  Result<checkpoints::FilePlan> plan =
      checkpoints::plan_files(parameters, extras, {.type = request_.type});
  if (!plan.ok()) return plan.status();
  plan_ = std::move(*plan);
  items_.resize(plan_.files.size());
  using What = Item::What;
  for (const auto& chunk : plan_.chunks) {
    for (const checkpoints::PlannedTensor& tensor : chunk) {
      if (tensor.bytes == 0) continue;
      items_[tensor.file][tensor.offset] = {What::kArray, tensor.parameter, tensor.kind};
    }
  }
  for (const auto& step : plan_.steps)
    items_[step.file][step.offset] = {What::kStep, step.parameter};
  for (const checkpoints::PlannedTensor& extra : plan_.extras) {
    if (extra.bytes != 0) items_[extra.file][extra.offset] = {What::kExtra, extra.parameter};
  }
  return Status();
}

// A parameter or what completes it, a block at a time.
Status Importer::write_master(const StoredTensor& param, StateKind kind,
                              PieceWriter& writer) const {
  const uint64_t numel = param.numel(), block = std::min(numel, kConvertBlockNumel);
  const ComputeType type = request_.type;
  std::vector<std::byte> stored(block * param.dtype->bytes);
  std::vector<float> values(block);
  std::vector<std::byte> params(block * element_bytes(type)), masters(block * master_bytes(type));
  for (uint64_t first = 0; first < numel; first += block) {
    const uint64_t count = std::min(block, numel - first);
    const std::span<std::byte> bytes(stored.data(), count * param.dtype->bytes);
    const Status read = read_exact(folder_.files[param.file].fd.get(),
                                   param.offset + first * param.dtype->bytes, bytes);
    if (!read.ok()) {
      return error(read.code(), "{}: {}", folder_.place_of(param), read.message());
    }
    optim::read_values(param.dtype->name, bytes.data(), count, values.data());
    optim::load_master(type, values.data(), count, params.data(), masters.data());
    ELIXIR_RETURN_IF_ERROR(writer.append(
        kind == StateKind::kParam ? std::span(params.data(), count * element_bytes(type))
                                  : std::span(masters.data(), count * master_bytes(type))));
  }
  return Status();
}

Status Importer::write_moment(const ImportedParameter& trained, StateKind kind,
                              PieceWriter& writer) const {
  const pickle::Value* const state =
      kind == StateKind::kExpAvg ? trained.adam.exp_avg : trained.adam.exp_avg_sq;
  if (state == nullptr) {  // it has made no step
    const std::vector<float> zeros(trained.param->numel());
    return writer.append(std::as_bytes(std::span(zeros)));
  }
  const Result<at::Tensor> values = file_.read(*state);
  if (!values.ok()) {
    return error(values.status().code(), "of '{}': {}", trained.param->name,
                 values.status().message());
  }
  const auto bytes =
      std::as_bytes(std::span(values->data_ptr<float>(), static_cast<size_t>(values->numel())));
  ELIXIR_RETURN_IF_ERROR(checkpoints::check_counts(
      request_.torch_file, fmt::format("{}.{}", trained.param->name, checkpoints::state_name(kind)),
      count_values(kind == StateKind::kExpAvgSq ? ValueFormat::kFp32Square : ValueFormat::kFp32,
                   bytes),
      ComputeType::kFp32));
  return writer.append(bytes);
}

Status Importer::write_extra(const StoredTensor& tensor, PieceWriter& writer) const {
  const uint64_t bytes = tensor.end - tensor.begin;
  std::vector<std::byte> block(std::min(bytes, kConvertBlockNumel));
  for (uint64_t first = 0; first < bytes; first += block.size()) {
    const std::span<std::byte> part(block.data(), std::min<uint64_t>(block.size(), bytes - first));
    const Status read =
        read_exact(folder_.files[tensor.file].fd.get(), tensor.offset + first, part);
    if (!read.ok()) {
      return error(read.code(), "{}: {}", folder_.place_of(tensor), read.message());
    }
    ELIXIR_RETURN_IF_ERROR(writer.append(part));
  }
  return Status();
}

Status Importer::write_item(const Item& item, PieceWriter& writer) const {
  switch (item.what) {
    case Item::What::kExtra:
      return write_extra(*extras_[item.number], writer);
    case Item::What::kStep: {
      const auto step = static_cast<float>(trained_[item.number].adam.step);
      return writer.append(std::as_bytes(std::span(&step, 1)));
    }
    case Item::What::kArray:
      break;
  }
  const ImportedParameter& trained = trained_[item.number];
  return item.kind == StateKind::kExpAvg || item.kind == StateKind::kExpAvgSq
             ? write_moment(trained, item.kind, writer)
             : write_master(*trained.param, item.kind, writer);
}

Result<checkpoints::ManifestFile> Importer::write_file(checkpoints::NewFolder& output,
                                                       uint32_t number) {
  const checkpoints::FilePlan::File& file = plan_.files[number];
  const Result<int> fd = output.create_file(file.name, file.bytes);
  if (!fd.ok()) return fd.status();
  PieceWriter writer(*fd, file.name, written_);
  ELIXIR_RETURN_IF_ERROR(writer.append(std::as_bytes(std::span(file.header))));
  for (const auto& [offset, item] : items_[number]) {
    ELIXIR_CHECK(writer.at() == offset, "{}: at {} of {}", file.name, writer.at(), offset);
    ELIXIR_RETURN_IF_ERROR(write_item(item, writer));
  }
  ELIXIR_CHECK(writer.at() == file.bytes, "{}: {} of {} bytes", file.name, writer.at(), file.bytes);
  return writer.finish();
}

// config.json, the tokenizer's files: what makes the folder one of Hugging Face's.
Status Importer::write_small_files(checkpoints::NewFolder& output) const {
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path, failure)) {
    const std::string name = entry.path().filename(), suffix = entry.path().extension();
    const bool text =
        suffix == ".json" || suffix == ".txt" || suffix == ".model" || suffix == ".jinja";
    if (!text || !checkpoints::check_user_file_name(name).ok()) continue;
    Result<std::string> bytes = read_stored_file(folder_, name, kMostSmallFileBytes);
    if (bytes.ok() && name == "config.json") {
      bytes = planner::config_json_of_type(*bytes, request_.type);
    }
    if (!bytes.ok()) return bytes.status();
    ELIXIR_RETURN_IF_ERROR(output.write_file(name, std::as_bytes(std::span(*bytes))));
  }
  if (failure) return error(Code::kBadInput, "{}: {}", folder_.path, failure.message());
  return Status();
}

checkpoints::Manifest Importer::manifest() const {
  checkpoints::Manifest manifest{.type = request_.type, .health = checkpoints::Health()};
  for (const ImportedParameter& trained : trained_) {
    manifest.updates = std::max(manifest.updates, trained.adam.step);
  }
  manifest.step = request_.step.value_or(manifest.updates);
  manifest.updates = std::min(manifest.updates, manifest.step);
  manifest.rule = adam_.groups.front().decoupled ? UpdateRule::kAdamW : UpdateRule::kAdam;
  for (const AdamGroup& group : adam_.groups) {
    manifest.groups.push_back({.lr = group.lr,
                               .weight_decay = group.weight_decay,
                               .hyper = {group.beta1, group.beta2, group.eps}});
  }
  for (const ImportedParameter& trained : trained_) {
    if (trained.adam.step != manifest.updates) {
      manifest.updates_of[trained.param->name] = trained.adam.step;
    }
    if (trained.adam.group != 0) manifest.group_of[trained.param->name] = trained.adam.group;
  }
  return manifest;
}

Status Importer::write(checkpoints::NewFolder& output, checkpoints::Manifest all) {
  for (uint32_t number = 0; number < plan_.files.size(); ++number) {
    Result<checkpoints::ManifestFile> file = write_file(output, number);
    if (!file.ok()) return file.status();
    all.files.push_back(std::move(*file));
  }
  ELIXIR_RETURN_IF_ERROR(
      output.write_file("model.safetensors.index.json", std::as_bytes(std::span(plan_.index))));
  ELIXIR_RETURN_IF_ERROR(write_small_files(output));
  return output.publish(std::move(all));
}

Status Importer::run() {
  ELIXIR_RETURN_IF_ERROR(match());
  ELIXIR_RETURN_IF_ERROR(plan());
  checkpoints::Manifest all = manifest();
  const std::filesystem::path path = std::filesystem::absolute(request_.output).lexically_normal();
  const std::filesystem::path place = path.has_filename() ? path : path.parent_path();
  const UniqueFd parent(::open(place.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.valid()) return errno_status(Code::kBadInput, place.parent_path());
  const Result<int> lock = checkpoints::lock_folder(parent.get(), kLockTimeoutS);
  if (!lock.ok()) return lock.status();
  const UniqueFd held(*lock);
  Result<checkpoints::NewFolder> output = checkpoints::NewFolder::create(
      parent.get(), place.filename(), all.step, "import-" + std::to_string(::getpid()));
  if (!output.ok()) return output.status();
  const ProgressNotes notes(
      [&] { return bytes_done("elixir-convert: written", written_, plan_.bytes); });
  return write(*output, std::move(all));
}

}  // namespace

Status import_torch(const ImportRequest& request) {
  Result<ImportModel> model = open_import_model(request.model);
  if (!model.ok()) return model.status();
  Result<TorchFile> file = TorchFile::open(request.torch_file);
  if (!file.ok()) return file.status();
  return Importer(request, std::move(*model), std::move(*file)).run();
}

}  // namespace elixir
