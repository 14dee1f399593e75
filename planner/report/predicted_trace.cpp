#include "planner/report/predicted_trace.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace elixir::planner {
namespace {

using Json = nlohmann::json;

constexpr const char* kRows[] = {"compute", "h2d", "d2h", "g2g", "update", "gpu update"};
constexpr int kProcess = 0;

Json row_name(int row) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", kProcess},
          {"tid", row},
          {"args", {{"name", kRows[row]}}}};
}

}  // namespace

std::string predicted_trace(std::span<const StepSpan> spans) {
  Json events = Json::array();
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", kProcess},
                    {"args", {{"name", "predicted step"}}}});
  for (int row = 0; row < static_cast<int>(std::size(kRows)); ++row) {
    events.push_back(row_name(row));
  }
  for (const StepSpan& span : spans) {
    const bool computes = span.row == StepSpan::Row::kCompute;
    const char* const what = computes ? "operator" : span.activations ? "activations" : "chunk";
    events.push_back({{"ph", "X"},
                      {"name", fmt::format("{} {}", what, span.index)},
                      {"pid", kProcess},
                      {"tid", static_cast<int>(span.row)},
                      {"ts", 1e6 * span.begin_s},  // microseconds, as the format wants
                      {"dur", 1e6 * (span.end_s - span.begin_s)}});
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace elixir::planner
