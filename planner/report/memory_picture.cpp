#include "planner/report/memory_picture.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/units.h"
#include "planner/report/svg_text.h"

namespace elixir::planner {
namespace {

constexpr double kWidth = 760, kHeight = 380;           // of the drawing, in pixels
constexpr double kLeft = 70, kTop = 40, kLegend = 300;  // around it
constexpr double kBottom = 50;
constexpr size_t kMostPoints = 760;  // of the curve: one per pixel
constexpr double kLineHeight = 14;

struct Band {
  const char* name;   // of its class
  const char* label;  // for people
  const char* colour;
  uint64_t bytes;
};

// The ticks' distance: 1, 2 or 5 times a power of ten, so that there are four to ten of them.
double tick_gib(double top_gib) {
  const double least = top_gib / 10;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

class Drawing {
 public:
  explicit Drawing(double top_bytes) : top_bytes_(top_bytes) {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kLeft + kWidth + kLegend, kTop + kHeight + kBottom);
  }
  double y(double bytes) const { return kTop + kHeight * (1 - bytes / top_bytes_); }

  void text(double x, double y, const std::string& words, const char* anchor = "start") {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                        anchor, svg_text(words));
  }
  // Right of the drawing, at the height of `bytes`, but below the label before it.
  void label(double bytes, const std::string& words) {
    const double wanted = y(bytes) + 4;
    label_y_ = std::min(wanted, label_y_ - kLineHeight);
    text(kLeft + kWidth + 8, label_y_, words);
  }
  void axes() {
    const double top_gib = top_bytes_ / kGiB, step = tick_gib(top_gib);
    for (int i = 0; i * step <= top_gib; ++i) {
      const double at = y(i * step * kGiB);
      svg_ += fmt::format(
          "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.2f}\" y2=\"{:.2f}\" "
          "stroke=\"#ddd\"/>\n",
          kLeft, kLeft + kWidth, at, at);
      text(kLeft - 8, at + 4, fmt::format("{:g}", i * step), "end");
    }
    text(kLeft - 8, kTop - 10, "GiB", "end");
    text(kLeft + kWidth / 2, kTop + kHeight + 20,
         "one step: the operators of forward, then those of backward", "middle");
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
    label(bytes, words);
  }
  std::string finish() && { return svg_ + "</svg>\n"; }

 private:
  static constexpr double kGiB = 1ull << 30;

  const double top_bytes_;
  double label_y_ = kTop + kHeight + 2 * kLineHeight;  // of the last label
  std::string svg_;
};

}  // namespace

std::string memory_picture(const Plan& plan, const ModelProfile& profile,
                           uint64_t gpu_memory_bytes) {
  const PlanBytes& bytes = plan.bytes;
  const Band bands[] = {
      {"buffers", "buffers", "#9aa5b1", bytes.gpu_buffers},
      {"states", "model states on the GPU", "#3d6fa5", bytes.gpu_states + bytes.gpu_swing},
      {"rcache", "rCache: gathered chunks", "#4fa58a", bytes.gpu_rcache},
      {"grad_blocks", "gradients on their way", "#a5604f", bytes.gpu_grad_blocks}};
  Drawing drawing(1.05 * static_cast<double>(std::max(gpu_memory_bytes, bytes.gpu())));
  drawing.text(kLeft, 18,
               fmt::format("{}: memory of {} over a step", plan.model,
                           plan.gpus == 1 ? "the GPU" : "each GPU"));
  drawing.axes();
  double below_bytes = 0;
  for (const Band& band : bands) {
    drawing.band(band, below_bytes);
    if (band.bytes > 0) {
      drawing.label(below_bytes + 0.5 * static_cast<double>(band.bytes),
                    fmt::format("{}, {}", band.label, format_bytes(band.bytes)));
    }
    below_bytes += static_cast<double>(band.bytes);
  }
  const std::vector<uint64_t> curve = profile.activation_curve.empty()
                                          ? std::vector<uint64_t>{bytes.gpu_activations}
                                          : thinned_curve(profile.activation_curve, kMostPoints);
  drawing.curve(curve, below_bytes);
  drawing.label(below_bytes + 0.5 * static_cast<double>(bytes.gpu_activations),
                fmt::format("activations, up to {}", format_bytes(bytes.gpu_activations)));
  if (gpu_memory_bytes > bytes.gpu()) {
    const uint64_t free_bytes = gpu_memory_bytes - bytes.gpu();
    drawing.label(static_cast<double>(bytes.gpu()) + 0.5 * static_cast<double>(free_bytes),
                  fmt::format("not needed, {}", format_bytes(free_bytes)));
  }
  drawing.limit(static_cast<double>(gpu_memory_bytes),
                fmt::format("memory of the GPU, {}", format_bytes(gpu_memory_bytes)));
  return std::move(drawing).finish();
}

}  // namespace elixir::planner
