#include <unistd.h>

#include <cerrno>

#include "base/text_file.h"
#include "models/convert.h"
#include "planner/models/transformer_config.h"

namespace elixir {

Result<std::vector<std::string>> read_names(const std::string& path) {
  std::vector<std::string> names;
  if (path.empty()) return names;
  const Result<std::string> text = read_text_file(path);
  if (!text.ok()) return text.status();
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    std::string name = text->substr(at, end - at);
    if (name.ends_with('\r')) name.pop_back();  // as Windows ends lines
    if (!name.empty()) names.push_back(std::move(name));
    at = end + 1;
  }
  if (names.empty()) return error(Code::kBadInput, "{} holds no names", path);
  return names;
}

std::vector<std::string> model_order(const checkpoints::StoredFolder& folder) {
  const Result<std::string> text = read_stored_file(folder, "config.json", kMaxTextFileBytes);
  if (!text.ok()) return {};
  const Result<planner::TransformerConfig> config = planner::transformer_from_config_json(*text);
  if (!config.ok()) return {};
  std::vector<std::string> names;
  for (const planner::NamedShape& parameter : planner::transformer_parameters(*config)) {
    names.push_back(parameter.name);
  }
  return names;
}

Status read_exact(int fd, uint64_t offset, std::span<std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got =
        ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(Code::kBadInput, "reading");
    if (got == 0) return error(Code::kBadInput, "it ended before byte {}", offset + bytes.size());
    done += static_cast<size_t>(got);
  }
  return Status();
}

}  // namespace elixir
