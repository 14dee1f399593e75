#include "planner/report/memory_picture.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/units.h"
#include "planner/report/svg_text.h"

namespace elixir::planner {
namespace {

constexpr double kWidth = 900, kHeight = 420;           // of the drawing, in pixels
constexpr double kLeft = 20, kTop = 30, kLegend = 190;  // around it
constexpr size_t kMostPoints = 900;                     // of the curve: one a pixel

struct Band {
  const char* name;
  const char* colour;
  uint64_t bytes;
};

class Drawing {
 public:
  explicit Drawing(double top_bytes) : top_bytes_(top_bytes) {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kLeft + kWidth + kLegend, kTop + kHeight + 40);
  }
  double y(double bytes) const { return kTop + kHeight * (1 - bytes / top_bytes_); }

  void text(double x, double y, const std::string& words) {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x, y, svg_text(words));
  }
  void band(const Band& band, double below_bytes) {
    const double top = y(below_bytes + static_cast<double>(band.bytes));
    svg_ += fmt::format(
        "<rect class=\"{}\" x=\"{}\" y=\"{:.2f}\" width=\"{}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
        band.name, kLeft, top, kWidth, y(below_bytes) - top, band.colour);
  }
  void curve(const std::vector<uint64_t>& bytes, double below_bytes) {
    svg_ += fmt::format("<polygon class=\"activations\" fill=\"#e8a33d\" points=\"{},{:.2f}", kLeft,
                        y(below_bytes));
    const double dx = kWidth / static_cast<double>(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) {
      const double top = y(below_bytes + static_cast<double>(bytes[i]));
      const double x = kLeft + dx * static_cast<double>(i);
      svg_ += fmt::format(" {:.2f},{:.2f} {:.2f},{:.2f}", x, top, x + dx, top);
    }
    svg_ += fmt::format(" {},{:.2f}\"/>\n", kLeft + kWidth, y(below_bytes));
  }
  void limit(double bytes, const std::string& words) {
    svg_ += fmt::format(
        "<line class=\"capacity\" x1=\"{}\" x2=\"{}\" y1=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"#b00\" "
        "stroke-dasharray=\"6 4\"/>\n",
        kLeft, kLeft + kWidth, y(bytes), y(bytes));
    text(kLeft + kWidth + 8, y(bytes) + 4, words);
  }
  std::string finish() && { return svg_ + "</svg>\n"; }

 private:
  const double top_bytes_;
  std::string svg_;
};

// At most kMostPoints, each the greatest of those it stands for.
std::vector<uint64_t> thinned(const std::vector<uint64_t>& curve) {
  const size_t points = std::min(curve.size(), kMostPoints);
  std::vector<uint64_t> result(points);
  for (size_t i = 0; i < curve.size(); ++i) {
    uint64_t& point = result[i * points / curve.size()];
    point = std::max(point, curve[i]);
  }
  return result;
}

}  // namespace

std::string memory_picture(const Plan& plan, const ModelProfile& profile,
                           uint64_t gpu_memory_bytes) {
  const PlanBytes& bytes = plan.bytes;
  const Band bands[] = {{"buffers", "#9aa5b1", bytes.gpu_buffers},
                        {"states", "#3d6fa5", bytes.gpu_states + bytes.gpu_swing},
                        {"rcache", "#4fa58a", bytes.gpu_rcache},
                        {"grad_blocks", "#a5604f", bytes.gpu_grad_blocks}};
  Drawing drawing(1.05 * static_cast<double>(std::max(gpu_memory_bytes, bytes.gpu())));
  drawing.text(kLeft, 18,
               fmt::format("{} on one of {} GPUs, memory over a step", plan.model, plan.gpus));
  double below_bytes = 0;
  for (const Band& band : bands) {
    drawing.band(band, below_bytes);
    if (band.bytes > 0) {
      drawing.text(kLeft + kWidth + 8,
                   drawing.y(below_bytes + 0.5 * static_cast<double>(band.bytes)) + 4,
                   fmt::format("{} {}", band.name, format_bytes(band.bytes)));
    }
    below_bytes += static_cast<double>(band.bytes);
  }
  const std::vector<uint64_t> curve = profile.activation_curve.empty()
                                          ? std::vector<uint64_t>{bytes.gpu_activations}
                                          : thinned(profile.activation_curve);
  drawing.curve(curve, below_bytes);
  drawing.text(kLeft + kWidth + 8,
               drawing.y(below_bytes + 0.5 * static_cast<double>(bytes.gpu_activations)) + 4,
               fmt::format("activations {}", format_bytes(bytes.gpu_activations)));
  drawing.limit(static_cast<double>(gpu_memory_bytes),
                fmt::format("capacity {}", format_bytes(gpu_memory_bytes)));
  drawing.text(kLeft, kTop + kHeight + 20, "forward, then backward: one column for each operator");
  return std::move(drawing).finish();
}

}  // namespace elixir::planner
