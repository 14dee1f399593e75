#include "base/folder_names.h"

#include <dirent.h>
#include <fcntl.h>

#include <cerrno>
#include <memory>

namespace elixir {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

}  // namespace

std::optional<std::vector<std::string>> folder_names(const std::string& path) {
  return folder_names(UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
}

std::optional<std::vector<std::string>> folder_names(UniqueFd folder) {
  if (!folder.valid()) return std::nullopt;
  const std::unique_ptr<DIR, CloseFolder> entries(::fdopendir(folder.get()));
  if (entries == nullptr) return std::nullopt;
  folder.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  if (errno != 0) return std::nullopt;
  return names;
}

}  // namespace elixir
