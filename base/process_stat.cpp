#include "base/process_stat.h"

#include <fmt/format.h>

#include <sstream>

#include "base/text_file.h"

namespace elixir {

std::string ProcessStat::field(int number) const {
  std::istringstream words(fields);
  std::string word;
  for (int i = 0; i <= number; ++i) {
    if (!(words >> word)) return "";
  }
  return word;
}

std::optional<ProcessStat> process_stat(pid_t pid) {
  const Result<std::string> text = read_text_file(fmt::format("/proc/{}/stat", pid));
  if (!text.ok()) return std::nullopt;
  const size_t name = text->find(" (");
  const size_t name_end = text->rfind(") ");  // a name may have brackets in it
  if (name == text->npos || name_end == text->npos || name_end + 2 >= text->size() ||
      name + 2 > name_end) {
    return std::nullopt;
  }
  return ProcessStat{.name = text->substr(name + 2, name_end - name - 2),
                     .fields = text->substr(name_end + 2)};
}

}  // namespace elixir
