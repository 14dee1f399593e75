#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <span>
#include <string>

#include "base/check.h"
#include "base/fd.h"

namespace elixir::fuzz {

// A file that is overwritten for each input.
class RewrittenFile {
 public:
  explicit RewrittenFile(std::string path)
      : path_(std::move(path)), file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    ELIXIR_CHECK(file_.valid(), "open {}", path_);
  }
  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes) const {
    ELIXIR_CHECK(::ftruncate(file_.get(), 0) == 0, "ftruncate");
    const ssize_t wrote = ::pwrite(file_.get(), bytes.data(), bytes.size(), 0);
    ELIXIR_CHECK(wrote == static_cast<ssize_t>(bytes.size()), "pwrite");
  }

 private:
  const std::string path_;
  const UniqueFd file_;
};

}  // namespace elixir::fuzz
