#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

// Room on a disk for what --export writes at the end of a run, taken at its start: a file without a
// name, so that nothing is left of it however the run ends.
class ExportRoom {
 public:
  ExportRoom() = default;  // holds nothing

  // `bytes` in `parent`, for what will be `path`. kResourceExhausted: there is less; the message
  // has both numbers. A file system that cannot reserve is only asked how much is free.
  static Result<ExportRoom> hold(const std::string& path, const std::string& parent,
                                 uint64_t bytes);
  void give_back() { file_.reset(); }
  bool holds() const { return file_.valid(); }

 private:
  UniqueFd file_;
};

// The model's files in its compute type, with `files` beside them.
Result<uint64_t> export_bytes(const TrainOptions& options,
                              const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace elixir
