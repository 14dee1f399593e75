#include "models/kept_files.h"

#include <sys/stat.h>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/stored_folder.h"
#include "planner/models/config_json.h"

namespace elixir {
namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kConfig = "config.json";
constexpr uint64_t kMostBytes = uint64_t{64} << 20;
constexpr const char* kKept[] = {"generation_config.json",
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "tokenizer.model",
                                 "vocab.json",
                                 "merges.txt",
                                 "added_tokens.json",
                                 "special_tokens_map.json",
                                 "chat_template.jinja"};

// Of an ordinary file, or of one that a link of the hub's cache leads to; 0: there is none, or it
// is empty.
uint64_t kept_bytes(const checkpoints::StoredFolder& stored, const char* name) {
  struct stat about {};
  if (::lstat(fmt::format("{}/{}", stored.path, name).c_str(), &about) != 0) return 0;
  if (S_ISREG(about.st_mode)) return static_cast<uint64_t>(about.st_size);
  if (!S_ISLNK(about.st_mode)) return 0;
  const Result<checkpoints::StoredFile> linked = checkpoints::open_stored_file(stored, name);
  return linked.ok() ? linked->bytes : 0;
}

Result<std::string> config_of(const checkpoints::StoredFolder& stored,
                              const TrainOptions& options) {
  if (kept_bytes(stored, kConfig) == 0) {
    return planner::config_json(options.config, options.run.dtype);
  }
  const Result<std::string> text =
      checkpoints::read_stored_file(stored, kConfig, planner::kMaxConfigBytes);
  if (!text.ok()) return text.status();
  return planner::config_json_of_type(*text, options.run.dtype);
}

}  // namespace

Result<Files> files_to_keep(const std::string& folder, const TrainOptions& options) {
  if (folder.empty())
    return Files{{kConfig, planner::config_json(options.config, options.run.dtype)}};
  const Result<checkpoints::StoredFolder> stored = checkpoints::open_stored_folder(folder);
  if (!stored.ok()) return stored.status();
  const Result<std::string> config = config_of(*stored, options);
  if (!config.ok()) return config.status();
  Files files = {{kConfig, *config}};
  uint64_t all_bytes = config->size();
  for (const char* name : kKept) {
    const uint64_t bytes = kept_bytes(*stored, name);
    if (bytes == 0) continue;
    if (bytes > kMostBytes - all_bytes) {
      log_warn("file_left_out", "file=\"{}/{}\" why=\"{}; all together may have {}\"", folder, name,
               format_bytes(bytes), format_bytes(kMostBytes));
      continue;
    }
    Result<std::string> text = checkpoints::read_stored_file(*stored, name, kMostBytes - all_bytes);
    if (!text.ok()) return text.status();
    all_bytes += text->size();
    files.emplace_back(name, std::move(*text));
  }
  return files;
}

}  // namespace elixir
