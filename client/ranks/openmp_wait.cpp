#include "client/ranks/openmp_wait.h"

#include <stdlib.h>
#include <unistd.h>

#include <vector>

#include "base/text_file.h"

namespace elixir {
namespace {

constexpr const char* kVariable = "GOMP_SPINCOUNT";
constexpr const char* kSpins = "1000";

}  // namespace

std::string openmp_wait_setting() {
  const bool said = std::getenv(kVariable) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr;
  return said ? "" : std::string(kVariable) + "=" + kSpins;
}

void limit_openmp_spinning() {
  if (openmp_wait_setting().empty()) return;
  Result<std::string> command_line = read_text_file("/proc/self/cmdline");
  if (!command_line.ok()) return;
  std::vector<char*> arguments;  // each ends with a zero
  for (size_t at = 0; at < command_line->size(); at = command_line->find('\0', at) + 1) {
    arguments.push_back(command_line->data() + at);
    if (command_line->find('\0', at) == std::string::npos) break;
  }
  arguments.push_back(nullptr);
  ::setenv(kVariable, kSpins, /*overwrite=*/1);
  ::execv("/proc/self/exe", arguments.data());
}

}  // namespace elixir
