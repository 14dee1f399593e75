#include "models/torch_file.h"

#include <ATen/ops/empty.h>
#include <caffe2/serialize/file_adapter.h>
#include <caffe2/serialize/inline_container.h>
#include <sys/stat.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "checkpoint/folder_calls.h"
#include "checkpoint/new_file.h"

namespace elixir {
namespace {

using caffe2::serialize::PyTorchStreamReader;
using caffe2::serialize::PyTorchStreamWriter;

// LibTorch's messages go on with a stack.
std::string first_line(const std::exception& failure) {
  const std::string text = failure.what();
  return text.substr(0, text.find('\n'));
}

struct StorageType {
  std::string_view name;
  at::ScalarType type;
};
constexpr StorageType kStorageTypes[] = {{"Float", at::kFloat},
                                         {"Double", at::kDouble},
                                         {"Half", at::kHalf},
                                         {"BFloat16", at::kBFloat16}};

std::string shown(std::string_view foreign) {
  std::string text(foreign.substr(0, 80));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return text;
}

}  // namespace

struct TorchFile::Archive {
  std::unique_ptr<PyTorchStreamReader> reader;
  uint64_t file_bytes = 0;

  // Nothing in it is compressed, so that nothing is longer than the file.
  Status read(const std::string& name, std::vector<char>* bytes, size_t most) const;
};

Status TorchFile::Archive::read(const std::string& name, std::vector<char>* bytes,
                                size_t most) const {
  if (!reader->hasRecord(name)) return error(Code::kBadInput, "it has no '{}'", shown(name));
  const size_t size = reader->getRecordSize(name);
  if (size > most || size > file_bytes) {
    return error(Code::kBadInput, "its '{}' has {} bytes, more than can be", shown(name), size);
  }
  bytes->resize(size);
  if (reader->getRecord(name, bytes->data(), size) != size) {
    return error(Code::kBadInput, "its '{}' is cut short", shown(name));
  }
  return Status();
}

TorchFile::TorchFile() = default;
TorchFile::TorchFile(TorchFile&&) noexcept = default;
TorchFile::~TorchFile() = default;

Result<TorchFile> TorchFile::open(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno_status(Code::kBadInput, path);
  if (!S_ISREG(info.st_mode)) return error(Code::kBadInput, "{} is not a file", path);
  TorchFile file;
  file.path_ = path;
  file.archive_ = std::make_unique<Archive>();
  file.archive_->file_bytes = static_cast<uint64_t>(info.st_size);
  try {
    file.archive_->reader = std::make_unique<PyTorchStreamReader>(
        std::make_shared<caffe2::serialize::FileAdapter>(path));
    std::vector<char> bytes;
    const Status read = file.archive_->read("data.pkl", &bytes, pickle::kMaxBytes);
    if (!read.ok()) return error(Code::kBadInput, "{}: {}", path, read.message());
    Result<pickle::Document> document = pickle::Document::parse(std::move(bytes));
    if (!document.ok()) {
      return error(Code::kBadInput, "{}: {}", path, document.status().message());
    }
    file.document_ = std::move(*document);
  } catch (const std::exception& failure) {
    return error(Code::kBadInput,
                 "{} is not as torch.save() writes files since torch 1.6 ({}); load it with torch "
                 "and save it again",
                 path, first_line(failure));
  }
  return file;
}

Result<at::Tensor> TorchFile::read(const pickle::Value& value) const {
  const pickle::Tensor& tensor = document_.tensor(value);
  const StorageType* type = nullptr;
  for (const StorageType& known : kStorageTypes) {
    if (known.name == tensor.type) type = &known;
  }
  if (type == nullptr) {
    return error(Code::kBadInput, "{}: a tensor of type {} where a floating one belongs", path_,
                 shown(tensor.type));
  }
  try {
    auto bytes = std::make_unique<std::vector<char>>();
    const std::string name = "data/" + std::string(tensor.key);
    const Status read = archive_->read(name, bytes.get(), archive_->file_bytes);
    if (!read.ok()) return error(Code::kBadInput, "{}: {}", path_, read.message());
    const uint64_t element = c10::elementSize(type->type);
    if (bytes->size() / element != tensor.storage_numel || bytes->size() % element != 0) {
      return error(Code::kBadInput, "{}: '{}' has {} bytes, not those of {} elements of {}", path_,
                   shown(name), bytes->size(), tensor.storage_numel, element);
    }
    // The pickle's reader has seen that no index leaves the storage.
    char* const first = bytes->data() + tensor.offset * element;
    return at::from_blob(first, tensor.sizes, tensor.strides, at::TensorOptions(type->type))
        .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  } catch (const std::exception& failure) {
    return error(Code::kBadInput, "{}: {}", path_, first_line(failure));
  }
}

Status write_torch_file(const std::string& path, const at::IValue& value) {
  Result<checkpoints::NewFile> file = checkpoints::NewFile::create(path);
  if (!file.ok()) return file.status();
  Status wrote;
  uint64_t end = 0;
  try {
    std::vector<char> pickled;
    torch::jit::Pickler pickler(
        [&](const char* bytes, size_t size) { pickled.insert(pickled.end(), bytes, bytes + size); },
        /*tensor_table=*/nullptr, /*type_renamer=*/nullptr, /*memoized_class_types=*/nullptr,
        /*get_tensor_id=*/nullptr, /*tag_aggregates=*/false);
    pickler.protocol();
    pickler.pushIValue(value);
    pickler.stop();
    PyTorchStreamWriter writer([&](const void* bytes, size_t size) -> size_t {
      wrote = checkpoints::write_all(file->fd(), {static_cast<const std::byte*>(bytes), size}, end);
      if (!wrote.ok()) return 0;
      end += size;
      return size;
    });
    writer.writeRecord("data.pkl", pickled.data(), pickled.size());
    writer.writeRecord("byteorder", "little", 6);
    size_t number = 0;
    for (const at::Tensor& tensor : pickler.tensorData()) {
      writer.writeRecord("data/" + std::to_string(number++), tensor.storage().data(),
                         tensor.storage().nbytes());
    }
    writer.writeEndOfFile();
  } catch (const std::exception& failure) {
    return wrote.ok() ? error(Code::kInternal, "{}: {}", path, first_line(failure)) : wrote;
  }
  return file->publish();
}

}  // namespace elixir
