#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/nearest.h"
#include "base/progress.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/new_file.h"
#include "checkpoint/value_check.h"
#include "models/convert.h"
#include "models/torch_file.h"
#include "optim_cpu/master.h"

namespace elixir {
namespace {

using checkpoints::StoredFolder;
using checkpoints::StoredTensor;

constexpr uint32_t kThreads = 4;

// A file of the checkpoint, seen as memory, so that it need not fit there.
class MappedFile {
 public:
  explicit MappedFile(const checkpoints::StoredFile& file)
      : bytes_(file.bytes),
        at_(::mmap(nullptr, file.bytes, PROT_READ, MAP_SHARED, file.fd.get(), 0)) {}
  ~MappedFile() {
    if (valid()) ::munmap(at_, bytes_);
  }
  MappedFile(const MappedFile&) = delete;

  bool valid() const { return at_ != MAP_FAILED; }
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(at_) + offset; }

 private:
  const uint64_t bytes_;
  void* const at_;
};

// The states of one parameter.
struct ExportedParameter {
  const StoredTensor* param = nullptr;
  const StoredTensor *exp_avg = nullptr, *exp_avg_sq = nullptr, *step = nullptr;
  const StoredTensor* master = nullptr;  // what completes `param`; null: nothing
  uint32_t group = 0;
};

class Exporter {
 public:
  explicit Exporter(StoredFolder folder) : folder_(std::move(folder)) {}

  // What the request names; all of the checkpoint is compared with its manifest first.
  Status run(const ExportRequest& request);

 private:
  Status find_states();
  bool fits(const ExportedParameter& trained) const;
  Status put_in_order(const std::vector<std::string>& given);
  Status check_values() const;
  Status map_files();
  at::Tensor tensor_of(const StoredTensor& stored) const;
  at::IValue states() const;
  at::IValue groups() const;
  Status write_masters(const std::string& path) const;
  Status write_master(int fd, uint64_t offset, const ExportedParameter& trained) const;

  const StoredFolder folder_;
  std::map<std::string, ExportedParameter> trained_;
  std::vector<std::string> order_;  // group by group, as torch numbers parameters
  std::vector<std::unique_ptr<MappedFile>> files_;
};

// A manifest's hash keeps nobody from writing another one.
bool Exporter::fits(const ExportedParameter& trained) const {
  const checkpoints::Manifest& manifest = *folder_.manifest;
  const auto is = [&](const StoredTensor* state, std::string_view dtype) {
    return state != nullptr && state->dtype->name == dtype && state->shape == trained.param->shape;
  };
  const bool step = trained.step != nullptr && trained.step->dtype->name == "F32" &&
                    trained.step->end - trained.step->begin == sizeof(float);
  const bool master = manifest.type == ComputeType::kFp32
                          ? trained.master == nullptr
                          : is(trained.master, manifest.type == ComputeType::kBf16 ? "I16" : "F32");
  return step && master && is(trained.param, checkpoints::dtype_of(manifest.type).name) &&
         is(trained.exp_avg, "F32") && is(trained.exp_avg_sq, "F32") &&
         trained.group < manifest.groups.size();
}

Status Exporter::find_states() {
  ELIXIR_RETURN_IF_ERROR(checkpoints::check_has_model(folder_));
  if (!folder_.manifest || !folder_.manifest->optimizer_states) {
    return error(Code::kBadInput, "{} has no optimizer states: it is {}", folder_.path,
                 folder_.manifest ? "a model alone" : "no checkpoint of Elixir's");
  }
  std::map<std::string, const StoredTensor*> states;
  for (const StoredTensor& tensor : folder_.optimizer) states.emplace(tensor.name, &tensor);
  const auto find = [&](const std::string& parameter, const char* what) -> const StoredTensor* {
    const auto found = states.find("state." + parameter + "." + what);
    return found == states.end() ? nullptr : found->second;
  };
  for (const StoredTensor& param : folder_.model) {
    ExportedParameter trained{.param = &param,
                              .exp_avg = find(param.name, "exp_avg"),
                              .exp_avg_sq = find(param.name, "exp_avg_sq"),
                              .step = find(param.name, "step"),
                              .master = find(param.name, "master_low")};
    if (trained.exp_avg == nullptr) continue;  // frozen, or a buffer
    if (trained.master == nullptr) trained.master = find(param.name, "master");
    const auto group = folder_.manifest->group_of.find(param.name);
    if (group != folder_.manifest->group_of.end()) trained.group = group->second;
    if (!fits(trained)) {
      return error(Code::kBadInput, "{}: the states of '{}' do not fit it", folder_.path,
                   param.name);
    }
    trained_.emplace(param.name, trained);
  }
  if (trained_.empty()) return error(Code::kBadInput, "{}: nothing was trained", folder_.path);
  return Status();
}

Status Exporter::put_in_order(const std::vector<std::string>& given) {
  std::vector<std::string> order = given.empty() ? model_order(folder_) : given;
  if (given.empty()) {  // what the model's order lacks comes behind it, as the files have it
    for (const StoredTensor& tensor : folder_.model) order.push_back(tensor.name);
  }
  std::map<std::string, bool> taken;
  for (const std::string& name : order) {
    const auto found = trained_.find(name);
    if (found != trained_.end() && !taken[name]) {
      taken[name] = true;
      order_.push_back(name);
    } else if (!given.empty()) {
      std::vector<std::string> known;
      for (const auto& [other, unused] : trained_) known.push_back(other);
      return error(Code::kInvalidArgument, "--names: '{}' {}", name,
                   found != trained_.end()
                       ? "comes twice"
                       : "is not trained in " + folder_.path + "; the nearest name is '" +
                             nearest_name(name, known) + "'");
    }
  }
  if (order_.size() != trained_.size()) {
    return error(Code::kInvalidArgument, "--names: {} names for {} parameters", order_.size(),
                 trained_.size());
  }
  std::stable_sort(order_.begin(), order_.end(), [&](const auto& a, const auto& b) {
    return trained_.at(a).group < trained_.at(b).group;
  });
  return Status();
}

Status Exporter::check_values() const {
  ELIXIR_RETURN_IF_ERROR(checkpoints::check_update_counts(folder_));
  for (const std::string& name : order_) {
    const ExportedParameter& of = trained_.at(name);
    for (const StoredTensor* const tensor : {of.param, of.exp_avg, of.exp_avg_sq, of.master}) {
      if (tensor == nullptr) continue;
      ELIXIR_RETURN_IF_ERROR(check_stored_values(folder_, *tensor, ComputeType::kFp32));
    }
  }
  return Status();
}

Status Exporter::map_files() {
  for (const checkpoints::StoredFile& file : folder_.files) {
    files_.push_back(std::make_unique<MappedFile>(file));
    if (!files_.back()->valid()) {
      return errno_status(Code::kInternal, folder_.path + "/" + file.name);
    }
  }
  return Status();
}

// No bytes are copied.
at::Tensor Exporter::tensor_of(const StoredTensor& stored) const {
  return at::from_blob(files_[stored.file]->at(stored.offset), stored.shape,
                       at::TensorOptions(at::kFloat));
}

at::IValue Exporter::states() const {
  c10::impl::GenericDict all(c10::AnyType::get(), c10::AnyType::get());
  for (size_t i = 0; i < order_.size(); ++i) {
    const ExportedParameter& trained = trained_.at(order_[i]);
    float step = 0;
    std::memcpy(&step, files_[trained.step->file]->at(trained.step->offset), sizeof step);
    c10::impl::GenericDict entry(c10::AnyType::get(), c10::AnyType::get());
    entry.insert("step", at::scalar_tensor(step, at::TensorOptions(at::kFloat)));
    entry.insert("exp_avg", tensor_of(*trained.exp_avg));
    entry.insert("exp_avg_sq", tensor_of(*trained.exp_avg_sq));
    all.insert(static_cast<int64_t>(i), entry);
  }
  return all;
}

at::IValue Exporter::groups() const {
  const checkpoints::Manifest& manifest = *folder_.manifest;
  const bool decoupled = manifest.rule == UpdateRule::kAdamW;
  c10::impl::GenericList all(c10::AnyType::get());
  int64_t number = 0;
  for (uint32_t i = 0; i < manifest.groups.size(); ++i) {
    const checkpoints::ManifestGroup& group = manifest.groups[i];
    const auto hyper = [&](size_t which, double otherwise) {
      return which < group.hyper.size() ? group.hyper[which] : otherwise;
    };
    c10::impl::GenericDict entry(c10::AnyType::get(), c10::AnyType::get());
    entry.insert("lr", group.lr);
    entry.insert("betas", c10::ivalue::Tuple::create(
                              {at::IValue(hyper(kBeta1, 0.9)), at::IValue(hyper(kBeta2, 0.999))}));
    entry.insert("eps", hyper(kEps, 1e-8));
    entry.insert("weight_decay", group.weight_decay);
    for (const char* const flag : {"amsgrad", "maximize", "capturable", "differentiable"}) {
      entry.insert(flag, false);
    }
    for (const char* const choice : {"foreach", "fused"}) entry.insert(choice, at::IValue());
    entry.insert("decoupled_weight_decay", decoupled);
    c10::impl::GenericList params(c10::AnyType::get());
    for (; number < static_cast<int64_t>(order_.size()) &&
           trained_.at(order_[static_cast<size_t>(number)]).group == i;
         ++number) {
      params.push_back(number);
    }
    entry.insert("params", params);
    all.push_back(entry);
  }
  return all;
}

Status Exporter::write_master(int fd, uint64_t offset, const ExportedParameter& trained) const {
  const StoredTensor& param = *trained.param;
  const uint64_t numel = param.numel();
  const ComputeType type = folder_.manifest->type;
  std::vector<float> values(std::min(numel, kConvertBlockNumel));
  for (uint64_t first = 0; first < numel; first += kConvertBlockNumel) {
    const uint64_t count = std::min(kConvertBlockNumel, numel - first);
    const std::byte* const master =
        trained.master == nullptr
            ? nullptr
            : files_[trained.master->file]->at(trained.master->offset + first * master_bytes(type));
    optim::read_master(type, files_[param.file]->at(param.offset + first * element_bytes(type)),
                       master, count, values.data());
    ELIXIR_RETURN_IF_ERROR(checkpoints::write_all(
        fd, std::as_bytes(std::span(values.data(), count)), offset + first * sizeof(float)));
  }
  return Status();
}

// ExportedParameter parameters in FP32, then what else the model has, in its own type.
Status Exporter::write_masters(const std::string& path) const {
  const checkpoints::Dtype* const f32 = checkpoints::find_dtype("F32");
  std::vector<checkpoints::TensorEntry> entries;
  std::vector<const StoredTensor*> sources;
  for (const bool trained : {true, false}) {
    for (const StoredTensor& tensor : folder_.model) {
      if (trained_.contains(tensor.name) != trained) continue;
      entries.push_back({.name = tensor.name,
                         .dtype = trained ? f32 : tensor.dtype,
                         .shape = tensor.shape,
                         .begin = 0,
                         .end = trained ? tensor.numel() * 4 : tensor.end - tensor.begin});
      sources.push_back(&tensor);
    }
  }
  uint64_t end = 0;
  for (checkpoints::TensorEntry& entry : entries) {
    entry.begin = end;
    entry.end = end += entry.end;
  }
  const std::string header = checkpoints::encode_header(entries);
  Result<checkpoints::NewFile> file = checkpoints::NewFile::create(path);
  if (!file.ok()) return file.status();
  ELIXIR_RETURN_IF_ERROR(checkpoints::write_all(file->fd(), std::as_bytes(std::span(header)), 0));
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t offset = header.size() + entries[i].begin;
    const auto trained = trained_.find(entries[i].name);
    ELIXIR_RETURN_IF_ERROR(
        trained != trained_.end()
            ? write_master(file->fd(), offset, trained->second)
            : checkpoints::write_all(file->fd(),
                                     {files_[sources[i]->file]->at(sources[i]->offset),
                                      entries[i].end - entries[i].begin},
                                     offset));
  }
  return file->publish();
}

// Before the checkpoint is read, which takes long.
Status check_targets(const ExportRequest& request) {
  for (const std::string& path : {request.torch_file, request.masters_file}) {
    if (!path.empty()) ELIXIR_RETURN_IF_ERROR(checkpoints::check_new_file(path));
  }
  if (request.torch_file.empty() || request.torch_file != request.masters_file) return Status();
  return error(Code::kInvalidArgument, "--torch and --masters are one file, {}: name two",
               request.torch_file);
}

Status Exporter::run(const ExportRequest& request) {
  ELIXIR_RETURN_IF_ERROR(check_targets(request));
  ELIXIR_RETURN_IF_ERROR(find_states());
  const Result<std::vector<std::string>> names = read_names(request.names_file);
  if (!names.ok()) return names.status();
  ELIXIR_RETURN_IF_ERROR(put_in_order(*names));
  uint64_t bytes = 0;
  for (const checkpoints::ManifestFile& file : folder_.manifest->files) bytes += file.bytes;
  {
    checkpoints::ReadProgress progress;
    const ProgressNotes notes(
        [&] { return bytes_done("elixir-convert: checking", progress.bytes, bytes); });
    ELIXIR_RETURN_IF_ERROR(checkpoints::verify(folder_, kThreads, &progress));
    ELIXIR_RETURN_IF_ERROR(check_values());
  }
  ELIXIR_RETURN_IF_ERROR(map_files());
  const ProgressNotes notes([] { return std::string("elixir-convert: writing"); });
  if (!request.torch_file.empty()) {
    c10::impl::GenericDict file(c10::AnyType::get(), c10::AnyType::get());
    c10::impl::GenericList param_names(c10::AnyType::get());
    for (const std::string& name : order_) param_names.push_back(name);
    file.insert("state", states());
    file.insert("param_groups", groups());
    file.insert("param_names", param_names);
    ELIXIR_RETURN_IF_ERROR(write_torch_file(request.torch_file, file));
  }
  return request.masters_file.empty() ? Status() : write_masters(request.masters_file);
}

}  // namespace

Status export_torch(const ExportRequest& request) {
  Result<StoredFolder> folder = checkpoints::open_stored_folder(request.checkpoint);
  if (!folder.ok()) return folder.status();
  return Exporter(std::move(*folder)).run(request);
}

}  // namespace elixir
