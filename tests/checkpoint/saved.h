#pragma once

// A small checkpoint of plain files, which tests compare byte by byte.

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/listing.h"
#include "checkpoint/new_folder.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::checkpoints::testing {

inline constexpr const char* kModelFile = "model-00001-of-00001.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer/optimizer-00001-of-00001.safetensors";

inline UniqueFd open_folder(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(fd.valid()) << path;
  return fd;
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The content of a file in a step's checkpoint. No two files have equal content.
inline std::string text_of(const std::string& file, uint64_t step) {
  std::string text;
  while (text.size() < 3000) text += file + " of step " + std::to_string(step) + "\n";
  return text;
}

inline ManifestFile described(const std::string& name, const std::string& text) {
  return {name, text.size(), {{text.size(), xxh3_of(as_bytes(text))}}};
}

// Saves a checkpoint as elixird does, in few calls: two files in two pieces each, and two small
// ones.
inline Status save_step(int parent, uint64_t step, const std::string& tag = "job",
                        std::optional<Health> health = {}) {
  Result<NewFolder> folder = NewFolder::create(parent, step_name(step), step, tag);
  if (!folder.ok()) return folder.status();
  Manifest manifest;
  manifest.step = step;
  manifest.health = health;
  for (const char* const name : {kModelFile, kOptimizerFile}) {
    const std::string text = text_of(name, step);
    const Result<int> fd = folder->create_file(name, text.size());
    if (!fd.ok()) return fd.status();
    const size_t half = text.size() / 2;
    ELIXIR_RETURN_IF_ERROR(write_all(*fd, as_bytes(text).subspan(half), half));
    ELIXIR_RETURN_IF_ERROR(write_all(*fd, as_bytes(text).first(half), 0));
    manifest.files.push_back(described(name, text));
  }
  for (const char* const name : {"config.json", "user/rank-0.bin"}) {
    ELIXIR_RETURN_IF_ERROR(folder->write_file(name, as_bytes(text_of(name, step))));
  }
  return folder->publish(std::move(manifest));
}

// Whether all bytes that save_step() wrote are there, and the manifest agrees.
inline bool is_whole(const std::string& path, uint64_t step) {
  const Result<Manifest> manifest = decode_manifest(contents(path + "/" + kManifestName));
  if (!manifest.ok() || manifest->step != step || manifest->files.size() != 4) return false;
  for (const ManifestFile& file : manifest->files) {
    const std::string text = contents(path + "/" + file.name);
    if (text != text_of(file.name, step) || described(file.name, text) != file) return false;
  }
  return true;
}

// Sorted names in a folder, without the lock.
inline std::vector<std::string> names_of(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.insert(entry.path().filename());
  }
  names.erase(".elixir-lock");
  return {names.begin(), names.end()};
}

// A test with a folder into which checkpoints are saved.
class SavedInFolder : public ::testing::Test {
 protected:
  void save(uint64_t step, std::optional<Health> health = {}) {
    must(save_step(parent_.get(), step, "job", health));
  }
  std::vector<std::string> names() const { return names_of(folder_.path()); }

  const TemporaryFolder folder_;
  const UniqueFd parent_ = open_folder(folder_.path());
};

}  // namespace elixir::checkpoints::testing
