#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/check.h"

namespace elixir {

// A new folder for a test, mode 0700; removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char path[] = "/tmp/elixir-test-XXXXXX";
    ELIXIR_CHECK(::mkdtemp(path) != nullptr, "mkdtemp {}", path);
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(std::string_view name) const { return path_ + "/" + std::string(name); }

  // Writes a file, with its folders; returns its path.
  std::string write(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path file = path(name);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  std::string write_tokens(std::string_view name, const std::vector<uint16_t>& tokens) const {
    return write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2});
  }

 private:
  std::string path_;
};

}  // namespace elixir
