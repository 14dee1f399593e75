#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

// Reserves disk space at the start of a run for the model that --export writes at its end. It uses
// a file without a name, so nothing is left of it, however the run ends.
class ExportRoom {
 public:
  ExportRoom() = default;  // holds nothing

  // Reserves `bytes` in `parent` for the later `path`. If the file system cannot reserve space,
  // only checks how much is free. kResourceExhausted: there is less; the message has both numbers.
  static Result<ExportRoom> hold(const std::string& path, const std::string& parent,
                                 uint64_t bytes);
  void give_back() { file_.reset(); }
  bool holds() const { return file_.valid(); }

 private:
  UniqueFd file_;
};

// The size of the exported model's files in its compute type, `files` included.
Result<uint64_t> export_bytes(const TrainOptions& options,
                              const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace elixir
