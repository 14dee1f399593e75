#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace elixir {

// A new folder, mode 0700, gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char path[] = "/tmp/elixir-test-XXXXXX";
    path_ = ::mkdtemp(path);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace elixir
