#pragma once

// The files of fuzz_stored_folder.cpp's checkpoint that no input changes, for the target and its
// seeds.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"

namespace elixir::fuzz {

inline constexpr const char* kModelName = "model-a.safetensors";
inline constexpr const char* kOptimizerName = "optimizer/o.safetensors";
inline constexpr std::string_view kModelHeader =
    R"({"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[8,16]}})";
inline constexpr std::string_view kOptimizerHeader =
    R"({"state.w.exp_avg":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("state.w.exp_avg_sq":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]},)"
    R"("state.w.master_low":{"dtype":"I16","shape":[2,2],"data_offsets":[32,40]}})";
inline constexpr uint64_t kModelDataBytes = 16, kOptimizerDataBytes = 40;

inline std::string file_of(std::string_view header, uint64_t data_bytes) {
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + std::string(header) + std::string(data_bytes, 'x');
}

inline checkpoints::ManifestFile listed(const char* name, std::span<const std::byte> bytes,
                                        uint64_t piece_bytes) {
  checkpoints::ManifestFile file{name, bytes.size()};
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<uint64_t>(piece_bytes, bytes.size()));
    file.pieces.push_back({piece.size(), checkpoints::xxh3_of(piece)});
    bytes = bytes.subspan(piece.size());
  }
  return file;
}

// The whole manifest of that checkpoint: {"manifest":{...},"xxh3":...}.
inline std::string stored_folder_manifest(uint64_t piece_bytes) {
  const std::string model = file_of(kModelHeader, kModelDataBytes);
  const std::string optimizer = file_of(kOptimizerHeader, kOptimizerDataBytes);
  checkpoints::Manifest manifest;
  manifest.step = 10;
  manifest.updates = 9;
  manifest.type = ComputeType::kBf16;
  manifest.files = {listed(kModelName, std::as_bytes(std::span(model)), piece_bytes),
                    listed(kOptimizerName, std::as_bytes(std::span(optimizer)), piece_bytes)};
  return checkpoints::encode_manifest(manifest);
}

// Puts the content of a manifest beside its correct hash.
inline std::string sealed(std::string_view inner) {
  return fmt::format("{{\"manifest\":{},\"xxh3\":\"{:016x}\"}}\n", inner,
                     checkpoints::xxh3_of(std::as_bytes(std::span(inner))));
}
// The content of a manifest, without its hash.
inline std::string inner_of(std::string_view manifest) {
  const size_t before = std::string_view("{\"manifest\":").size();
  return std::string(manifest.substr(before, manifest.rfind(",\"xxh3\"") - before));
}

}  // namespace elixir::fuzz
