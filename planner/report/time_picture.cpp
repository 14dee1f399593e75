#include "planner/report/time_picture.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/units.h"
#include "planner/report/svg_text.h"

namespace elixir::planner {
namespace {

constexpr double kImageWidth = 760, kImageHeight = 380;  // of the drawing, in pixels
constexpr double kLeftMargin = 90, kTopMargin = 40, kRightMargin = 50,
                 kBottomMargin = 70;  // around it
constexpr int kMarks = 4;             // of an axis

}  // namespace

Result<std::vector<TimeAtMemory>> times_over_memory(const ModelProfile& profile,
                                                    const Machine& machine,
                                                    const PlanRequest& request) {
  std::vector<TimeAtMemory> times;
  for (int i = 1; i <= kPictureSizes; ++i) {
    Machine sized = machine;
    sized.gpu_memory_bytes = machine.gpu_memory_bytes / (kPictureSizes / 2) * i;
    const Result<PlannedStep> planned = make_plan(profile, sized, request);
    if (planned.ok()) {
      times.push_back({sized.gpu_memory_bytes, planned->plan.predicted.step_s});
    } else if (planned.status().code() != Code::kResourceExhausted) {
      return planned.status();
    }
  }
  return times;
}

std::string time_picture(const std::vector<TimeAtMemory>& times, const std::string& model,
                         uint64_t gpu_memory_bytes) {
  double slowest_s = 0;
  for (const TimeAtMemory& time : times) slowest_s = std::max(slowest_s, time.step_s);
  const double most_s = slowest_s > 0 ? 1.05 * slowest_s : 1;
  const double most_bytes = 2 * static_cast<double>(gpu_memory_bytes);
  const auto x = [&](double bytes) { return kLeftMargin + kImageWidth * bytes / most_bytes; };
  const auto y = [&](double seconds) { return kTopMargin + kImageHeight * (1 - seconds / most_s); };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kLeftMargin + kImageWidth + kRightMargin, kTopMargin + kImageHeight + kBottomMargin);
  const auto text = [&](double at_x, double at_y, const char* anchor, const std::string& words) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at_x, at_y,
                       anchor, svg_text(words));
  };
  const auto line = [&](const char* name, double x1, double y1, double x2, double y2,
                        const char* stroke) {
    svg += fmt::format(
        "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", name,
        x1, y1, x2, y2, stroke);
  };
  text(kLeftMargin, 20, "start",
       fmt::format("{}: predicted time of a step for GPUs of other sizes", model));
  text(kLeftMargin + kImageWidth / 2, kTopMargin + kImageHeight + 45, "middle",
       "memory of the GPU");
  text(kLeftMargin - 8, kTopMargin - 8, "end", "a step");
  text(x(static_cast<double>(gpu_memory_bytes)) + 6, kTopMargin + 12, "start", "this machine");
  for (int i = 0; i <= kMarks; ++i) {
    const double share = static_cast<double>(i) / kMarks;
    const double bytes = share * most_bytes, seconds = share * most_s;
    line("grid", kLeftMargin, y(seconds), kLeftMargin + kImageWidth, y(seconds), "stroke=\"#ddd\"");
    text(kLeftMargin - 8, y(seconds) + 4, "end", fmt::format("{:.1f} ms", 1e3 * seconds));
    text(x(bytes), kTopMargin + kImageHeight + 20, "middle",
         format_bytes(static_cast<uint64_t>(bytes)));
  }
  line("machine", x(static_cast<double>(gpu_memory_bytes)), kTopMargin,
       x(static_cast<double>(gpu_memory_bytes)), kTopMargin + kImageHeight,
       "stroke=\"#b00\" stroke-dasharray=\"6 4\"");
  std::string points;
  for (const TimeAtMemory& time : times) {
    points += fmt::format("{:.1f},{:.1f} ", x(static_cast<double>(time.gpu_memory_bytes)),
                          y(time.step_s));
  }
  if (times.empty()) text(kLeftMargin + 8, kTopMargin + 20, "start", "nothing fits");
  svg += fmt::format("<polyline class=\"time\" fill=\"none\" stroke=\"#3d6fa5\" points=\"{}\"/>\n",
                     points);
  for (const TimeAtMemory& time : times) {
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#3d6fa5\"><title>{}: {:.1f} "
        "ms</title></circle>\n",
        x(static_cast<double>(time.gpu_memory_bytes)), y(time.step_s),
        format_bytes(time.gpu_memory_bytes), 1e3 * time.step_s);
  }
  return svg + "</svg>\n";
}

}  // namespace elixir::planner
