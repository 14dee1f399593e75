#include "client/ranks/slurm_lists.h"

#include <charconv>

namespace elixir {
namespace {

// The number that `text` begins with, which is then cut off.
std::optional<uint32_t> take_number(std::string_view& text) {
  uint32_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

}  // namespace

std::string first_slurm_host(std::string_view nodes) {
  std::string host;
  while (!nodes.empty() && nodes.front() != ',') {
    if (nodes.front() != '[') {
      host += nodes.front();
      nodes.remove_prefix(1);
      continue;
    }
    const size_t close = nodes.find(']');
    if (close == std::string_view::npos) return "";
    const std::string_view ranges = nodes.substr(1, close - 1);
    host += ranges.substr(0, ranges.find_first_of("-,"));
    nodes.remove_prefix(close + 1);
  }
  return host;
}

std::optional<uint32_t> slurm_tasks_on_node(std::string_view tasks_per_node, uint32_t node) {
  for (uint32_t first = 0;;) {
    const std::optional<uint32_t> tasks = take_number(tasks_per_node);
    if (!tasks) return std::nullopt;
    uint32_t nodes = 1;
    if (take(tasks_per_node, "(x")) {
      const std::optional<uint32_t> times = take_number(tasks_per_node);
      if (!times || !take(tasks_per_node, ")")) return std::nullopt;
      nodes = *times;
    }
    if (node - first < nodes) return tasks;
    first += nodes;
    if (!take(tasks_per_node, ",")) return std::nullopt;
  }
}

}  // namespace elixir
