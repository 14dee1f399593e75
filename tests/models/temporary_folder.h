#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace elixir {

// A folder of its own for a test; gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "elixir_models_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no folder at " << pattern;
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;

  std::string path(std::string_view name) const { return path_ / name; }

  // Writes a file, with its folders; returns its path.
  std::string write(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  std::string write_tokens(std::string_view name, const std::vector<uint16_t>& tokens) const {
    return write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2});
  }

 private:
  std::filesystem::path path_;
};

}  // namespace elixir
