#pragma once

// Checkpoint folders for tests of reading. They are written byte by byte here, not by the code that
// writes checkpoints.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace elixir::checkpoints {

struct SmallTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes = {};  // filled in by small_tensors()
};

// Fills the tensors with random bytes.
inline std::vector<SmallTensor> small_tensors(std::vector<SmallTensor> tensors, uint32_t seed) {
  std::mt19937 random(seed);
  for (SmallTensor& tensor : tensors) {
    uint64_t bytes = find_dtype(tensor.dtype)->bytes;
    for (int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
    while (tensor.bytes.size() < bytes) tensor.bytes += static_cast<char>(random());
  }
  return tensors;
}

inline std::string small_file(const std::vector<SmallTensor>& tensors) {
  std::vector<TensorEntry> entries;
  std::string data;
  for (const SmallTensor& tensor : tensors) {
    const uint64_t begin = data.size();
    data += tensor.bytes;
    entries.push_back({tensor.name, find_dtype(tensor.dtype), tensor.shape, begin, data.size()});
  }
  return encode_header(entries) + data;
}

inline std::vector<Piece> small_pieces(std::string_view bytes, uint64_t piece_bytes) {
  std::vector<Piece> pieces;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, piece_bytes);
    pieces.push_back({piece.size(), xxh3_of(std::as_bytes(std::span(piece)))});
    bytes.remove_prefix(piece.size());
  }
  return pieces;
}

// A checkpoint in BF16: a trained matrix, bias and embedding, a frozen parameter, and two ranks'
// blobs.
struct SmallCheckpoint {
  // A piece has at most four tensors, and messages name them.
  static constexpr uint64_t kPieceBytes = 40;

  std::vector<SmallTensor> model_1 = small_tensors(
      {{"wte.weight", "BF16", {5, 4}}, {"h.0.w", "BF16", {4, 30}}, {"h.0.b", "BF16", {6}}}, 1);
  std::vector<SmallTensor> model_2 =
      small_tensors({{"steps", "I64", {2}}, {"frozen.w", "BF16", {3}}}, 2);
  std::vector<SmallTensor> optimizer;
  std::map<std::string, std::string> files;  // all files except the manifest
  Manifest manifest;

  SmallCheckpoint() {
    std::vector<SmallTensor> wide, narrow;
    for (const SmallTensor& tensor : model_1) {
      const std::string name = "state." + tensor.name;
      wide.push_back({name + ".exp_avg", "F32", tensor.shape});
      wide.push_back({name + ".exp_avg_sq", "F32", tensor.shape});
      wide.push_back({name + ".step", "F32", {}});
      narrow.push_back({name + ".master_low", "I16", tensor.shape});
    }
    wide.insert(wide.end(), narrow.begin(), narrow.end());
    optimizer = small_tensors(wide, 3);
    for (const SmallTensor& of : model_1) set_count(of.name, of.name == "h.0.b" ? 3 : 998);
    manifest = {.step = 1000,
                .updates = 998,
                .type = ComputeType::kBf16,
                .ranks = 2,
                .groups = {{0.001, 0.1, {0.9, 0.95, 1e-8}}, {0.1, 0, {0.8, 0.9, 1e-6}}},
                .loss_scale = {65536, 17},
                .updates_of = {{"h.0.b", 3}},
                .group_of = {{"h.0.b", 1}},
                .program = "{\"seed\": 7}"};
    seal();
  }

  // Sets Adam's step count in the optimizer's file.
  void set_count(const std::string& parameter, float count) {
    for (SmallTensor& tensor : optimizer) {
      if (tensor.name != "state." + parameter + ".step") continue;
      tensor.bytes.assign(reinterpret_cast<const char*>(&count), sizeof count);
    }
  }
  // Call it after tensors or the manifest have changed.
  void seal() {
    files["config.json"] = "{\"model_type\": \"gpt2\"}";
    files["user/rank-0.bin"] = std::string(300, 'a');
    files["user/rank-1.bin"] = "";
    files["model-00001-of-00002.safetensors"] = small_file(model_1);
    files["model-00002-of-00002.safetensors"] = small_file(model_2);
    files["optimizer/optimizer-00001-of-00001.safetensors"] = small_file(optimizer);
    list_files();
  }
  void list_files(uint64_t piece_bytes = kPieceBytes) {
    manifest.files.clear();
    for (const auto& [name, bytes] : files) {
      manifest.files.push_back({name, bytes.size(), small_pieces(bytes, piece_bytes)});
    }
  }
  void write(const TemporaryFolder& folder) const {
    for (const auto& [name, bytes] : files) folder.write(name, bytes);
    folder.write(kManifestName, encode_manifest(manifest));
  }
  // The parameters in a model's order, which differs from the files' order.
  std::vector<WantedParameter> wanted() const {
    return {{"frozen.w", {3}, false}, {"h.0.b", {6}}, {"h.0.w", {4, 30}}, {"wte.weight", {5, 4}}};
  }
  const SmallTensor& tensor(const std::string& name) const {
    for (const auto* list : {&model_1, &model_2, &optimizer}) {
      for (const SmallTensor& tensor : *list) {
        if (tensor.name == name) return tensor;
      }
    }
    ELIXIR_CHECK(false, "no tensor {}", name);
  }
};

// Joins ranges into whole arrays.
class CollectStates : public StateSink {
 public:
  void take(const LoadRange& range, std::span<const std::byte> bytes) override {
    ELIXIR_CHECK(bytes.size() == range.numel * range.dtype->bytes, "{} bytes", bytes.size());
    aligned_ = aligned_ && reinterpret_cast<uintptr_t>(bytes.data()) % range.dtype->bytes == 0;
    const MutexLock lock(mutex_);
    std::string& array = arrays_[{range.parameter, range.kind}];
    const uint64_t begin = range.first * range.dtype->bytes;
    if (array.size() < begin + bytes.size()) array.resize(begin + bytes.size());
    std::memcpy(array.data() + begin, bytes.data(), bytes.size());
    bytes_ += bytes.size();
  }

  // Call it after the reading.
  const std::string& array(uint32_t parameter, StateKind kind) const {
    return arrays_.at({parameter, kind});
  }
  size_t arrays() const { return arrays_.size(); }
  // bytes taken; equal to the arrays' bytes if each came once
  uint64_t bytes() const { return bytes_; }
  bool aligned() const { return aligned_; }

 private:
  Mutex mutex_;
  std::map<std::pair<uint32_t, StateKind>, std::string> arrays_;
  uint64_t bytes_ = 0;
  std::atomic<bool> aligned_{true};
};

}  // namespace elixir::checkpoints
