#include "planner/report/plan_text.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "base/units.h"
#include "base/wrapped.h"
#include "planner/choice_names.h"
#include "planner/machine.h"
#include "planner/search/make_plan.h"
#include "shm/shape.h"

namespace elixir::planner {
namespace {

// Of a step: a smaller gain is not worth other numbers.
constexpr double kWorthTelling = 0.03;
constexpr double kWorthTellingOfMemory = 0.01;

std::string count(uint64_t numel) {
  const auto value = static_cast<double>(numel);
  if (value >= 1e9) return fmt::format("{:.2f} B", value * 1e-9);
  if (value >= 1e6) return fmt::format("{:.1f} M", value * 1e-6);
  return fmt::format("{:.0f}", value);
}

std::string milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return ms > 0 && ms < 0.1 ? fmt::format("{:.2g} ms", ms) : fmt::format("{:.1f} ms", ms);
}

const char* ordinal(uint32_t number) {
  const uint32_t last = number % 10, tens = number / 10 % 10;
  if (tens == 1 || last == 0 || last > 3) return "th";
  return last == 1 ? "st" : last == 2 ? "nd" : "rd";
}

std::string placement_text(const Plan& plan) {
  const PlacementCounts& chunks = plan.placement;
  std::string text = fmt::format("{} updated by the CPU, {} by the GPU", chunks.cpu, chunks.gpu);
  if (chunks.swing > 0) {
    text += fmt::format(", {} swing (every {}{} of the others, through {} of GPU memory)",
                        chunks.swing, plan.chosen.stride, ordinal(plan.chosen.stride),
                        format_bytes(plan.bytes.gpu_swing));
  }
  text += fmt::format("; update {}", name_in(kUpdateModeNames, plan.update));
  if (plan.chosen.spare_slots > 0) {
    text += fmt::format(", {} spare slot{} ({})", plan.chosen.spare_slots,
                        plan.chosen.spare_slots == 1 ? "" : "s", format_bytes(plan.spare_bytes));
  }
  return text;
}

std::string gpus_text(const Plan& plan) {
  std::string text = fmt::format("{}", plan.gpus);
  if (plan.nodes > 1) text += fmt::format(" on {} nodes", plan.nodes);
  text += fmt::format(", exchange {}", exchange_name(plan.chosen.exchange));
  if (plan.scaled_from_gpus != 0) {
    text += fmt::format("; rates scaled from {} GPU{}", plan.scaled_from_gpus,
                        plan.scaled_from_gpus == 1 ? "" : "s");
  }
  if (plan.assumed_g2g) {
    text += "; how fast collectives are is not known (--g2g-gb-s), through host memory is assumed";
  }
  if (plan.assumed_fp32) {
    text += "; the matrix rate in FP32 (gpu_fp32_tflops) is not known, that of 16 bits is assumed";
  }
  return text;
}

// How long each leg is busy, and what is saved if it is twice as fast.
std::string legs_text(const Plan& plan) {
  const StepTimes& times = plan.predicted;
  const std::pair<Leg, double> legs[] = {{Leg::kCompute, times.compute_s},
                                         {Leg::kH2d, times.h2d_s},
                                         {Leg::kD2h, times.d2h_s},
                                         {Leg::kG2g, times.g2g_s},
                                         {Leg::kUpdate, times.update_s}};
  std::string text;
  for (const auto& [leg, busy_s] : legs) {
    text += fmt::format("{} {} ({}), ", leg_name(leg), milliseconds(busy_s),
                        milliseconds(plan.gains_s[static_cast<size_t>(leg)]));
  }
  return text + fmt::format("exposed {}; in brackets: saved if twice as fast",
                            milliseconds(times.exposed_s));
}

const char* in_words(Leg leg) {
  switch (leg) {
    case Leg::kCompute:
      return "compute on the GPU";
    case Leg::kH2d:
      return "copies to the GPU (h2d)";
    case Leg::kD2h:
      return "copies from the GPU (d2h)";
    case Leg::kG2g:
      return "the exchange between GPUs (g2g)";
    case Leg::kUpdate:
      return "the update on the CPU";
  }
  ELIXIR_CHECK(false, "leg {}", static_cast<int>(leg));
}

// The answer before the details.
std::string answer_text(const Plan& plan) {
  return fmt::format("yes: {} a step, {:.0f} tokens/s; the bottleneck is {}",
                     milliseconds(plan.predicted.step_s), tokens_a_second(plan),
                     in_words(plan.binding));
}

std::string predicted_text(const Plan& plan) {
  const double step_s = plan.predicted.step_s;
  std::string text =
      fmt::format("{} a step, {:.0f} tokens/s, {:.1f} TFLOPS a GPU, MFU {:.1f} %; {} binds",
                  milliseconds(step_s), tokens_a_second(plan), plan.predicted_tflops,
                  1e2 * plan.predicted_mfu, leg_name(plan.binding));
  const double immediate_s = plan.immediate_step_s;
  if (immediate_s > 0 && immediate_s < (1 - kWorthTelling) * step_s) {
    text += fmt::format("; with --update immediate {}", milliseconds(immediate_s));
  }
  if (plan.early_step_s > 0 && plan.early_step_s < (1 - kWorthTellingOfMemory) * step_s) {
    text += fmt::format("; with --update early, which takes more host memory, {}",
                        milliseconds(plan.early_step_s));
  }
  return text;
}

// The collective exchange reduces gradients in one order on all ranks, so those behind a parameter
// that a pass does not use wait for the next pass, in host memory. Counted where the profile says
// that this happens.
std::string waiting_text(const Plan& plan) {
  if (plan.chosen.exchange != shm::Exchange::kCollective || plan.gpus == 1) return "";
  if (plan.bytes.host_waiting > 0) {
    return fmt::format(", waiting gradients {}", format_bytes(plan.bytes.host_waiting));
  }
  const uint64_t one_model = (plan.numel - plan.frozen_numel) * element_bytes(plan.type);
  return fmt::format("; {} more at most where passes leave parameters unused",
                     format_bytes(one_model * (plan.gpus / plan.nodes)));
}

std::string host_text(const Plan& plan) {
  const PlanBytes& bytes = plan.bytes;
  std::string text = fmt::format("{}: parameters {}, gradients {}, states {}",
                                 format_bytes(bytes.host()), format_bytes(bytes.host_params),
                                 format_bytes(bytes.host_grads), format_bytes(bytes.host_states));
  if (bytes.host_activations > 0) text += ", activations " + format_bytes(bytes.host_activations);
  return text + waiting_text(plan);
}

}  // namespace

std::string swing_text(const Plan& plan) {
  using enum SwingFound::Why;
  const SwingFound& found = plan.swing;
  const double less = found.without_s > 0 ? 1 - found.step_s / found.without_s : 0;
  switch (found.why) {
    case kTaken:
      return fmt::format("every {}{} chunk: {} where it were {} without", plan.chosen.stride,
                         ordinal(plan.chosen.stride), milliseconds(found.step_s),
                         milliseconds(found.without_s));
    case kNoChunk:
      return "none: too few chunks are on the host, or all hold parts of parameters longer than "
             "one";
    case kRanks:
      return fmt::format(
          "none: the host exchange supports them for at most {} GPUs (--exchange collective)",
          shm::kMaxSwingRanks);
    case kSlowLink:
      return "none: the link, or host memory, would take longer than the CPU";
    case kNoMemory:
      return "none: GPU or host memory has no room for their buffers and slots";
    case kNoGain:
      return fmt::format(
          "none: every {}{} chunk would make it {}, {:.1f} % {}; taken from {:.0f} % less on",
          found.stride, ordinal(found.stride), milliseconds(found.step_s), 1e2 * std::abs(less),
          less < 0 ? "more" : "less", 1e2 * kSwingGain);
    case kImmediate:
      return "none: updates are immediate";
    case kNotAsked:
      break;
  }
  return "";
}

// "" if no region is known.
std::string regions_text(const Plan& plan) {
  const RegionPlan& regions = plan.region_plan;
  if (regions.regions == 0) return "";
  std::string text;
  const auto add = [&text](uint32_t count, const char* what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(regions.keep_all, "keep everything");
  add(regions.keep_products, "keep products");
  if (!text.empty()) text += fmt::format(" ({})", format_bytes(plan.kept_bytes));
  add(regions.host_products, "send products to the host");
  add(regions.recompute(), "recompute");
  if (!regions.sends_any()) return text;
  const uint64_t host_bytes = plan.bytes.host_activations / (plan.gpus / plan.nodes);
  add(regions.host_boundaries, "of them send their inputs");
  return text + fmt::format(" ({} in host memory)", format_bytes(host_bytes));
}

std::string plan_text(const Plan& plan, const PlanExtras& extras) {
  const StepTimes& times = plan.predicted;
  const PlanBytes& bytes = plan.bytes;
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    text += labelled(what, value, 13);
  };
  const std::string passes =
      plan.accumulate == 1 ? "step" : fmt::format("pass, {} passes a step", plan.accumulate);
  const std::string frozen =
      plan.frozen_numel == 0 ? "" : fmt::format(", {} of them frozen", count(plan.frozen_numel));
  line("fits", answer_text(plan));
  line("takes", fmt::format("{} of memory on each GPU, {} of host memory",
                            format_bytes(bytes.gpu()), format_bytes(bytes.host())));
  line("model",
       fmt::format("{}{} parameters{}, {} tokens a GPU and {}{}",
                   plan.model.empty() ? "" : plan.model + ", ", count(plan.numel), frozen,
                   plan.tokens, passes, plan.checkpointed ? ", activation checkpointing" : ""));
  if (const std::string text = regions_text(plan); !text.empty()) line("regions", text);
  line("GPUs", gpus_text(plan));
  line("chunks",
       fmt::format("{} of {} elements ({}), waste {:.1f} %", plan.n_chunks, plan.chunk_numel,
                   format_bytes(plan.chunk_numel * element_bytes(plan.type)),
                   1e2 * plan.waste_ratio));
  const std::string in_long =
      plan.chosen.long_blocks == 0
          ? ""
          : fmt::format(" and {} of {} for parameters longer than a chunk", plan.chosen.long_blocks,
                        format_bytes(plan.long_numel * element_bytes(plan.type)));
  line("rCache", fmt::format("{} blocks{}, {}; first grows the {}", plan.chosen.rcache_blocks,
                             in_long, format_bytes(bytes.gpu_rcache),
                             plan.rcache_first ? "rCache" : "number of chunks on the GPU"));
  line("states", placement_text(plan));
  if (const std::string text = swing_text(plan); !text.empty()) line("swing", text);
  line("GPU memory",
       fmt::format(
           "{}: chunks {}, states {}, activations {}, buffers {}; {} allowed for the first "
           "two",
           format_bytes(bytes.gpu()), format_bytes(bytes.gpu_rcache + bytes.gpu_grad_blocks),
           format_bytes(bytes.gpu_states + bytes.gpu_swing), format_bytes(bytes.gpu_activations),
           format_bytes(bytes.gpu_buffers), format_bytes(plan.u_allowed_bytes)));
  line("host memory", host_text(plan));
  line("a step moves", fmt::format("{} up, {} down, {} between GPUs", format_bytes(times.h2d_bytes),
                                   format_bytes(times.d2h_bytes), format_bytes(times.g2g_bytes)));
  line("predicted", predicted_text(plan));
  line("of it", legs_text(plan));
  if (!extras.largest.empty()) {
    std::string largest = fmt::format("{} {}", extras.largest, extras.largest_value);
    if (extras.largest == "seq" && extras.largest_value > 0) {
      const uint64_t sequences = plan.tokens / extras.largest_value;
      largest +=
          fmt::format(", with {} sequence{} in a batch", sequences, sequences == 1 ? "" : "s");
    }
    if (extras.largest_on_device < extras.largest_value) {
      largest += fmt::format("; {} without activations in host memory", extras.largest_on_device);
    }
    line("largest", largest);
  }
  if (extras.tokens > 0) {
    const TrainingRun run = training_run(plan, extras);
    const std::string cost =
        extras.price_per_gpu_hour > 0 ? fmt::format(", cost {:.2f}", run.cost) : "";
    line("run", fmt::format("{:.4g} tokens: {:.2f} days, {:.1f} GPU hours{}", extras.tokens,
                            run.days, run.gpu_hours, cost));
  }
  return text;
}

std::string measured_text(const Plan& plan, const MeasuredStep& measured) {
  const StepTimes& times = plan.predicted;
  const std::pair<const char*, std::pair<double, double>> legs[] = {
      {"compute", {times.compute_s, measured.legs.compute_s}},
      {"h2d", {times.h2d_s, measured.legs.h2d_s}},
      {"d2h", {times.d2h_s, measured.legs.d2h_s}},
      {"update", {times.update_s, measured.legs.update_s}}};
  const auto* worst = &legs[0];
  for (const auto& leg : legs) {
    const auto gap = [](const auto& one) { return std::abs(one.second.second - one.second.first); };
    if (gap(leg) > gap(*worst)) worst = &leg;
  }
  // What torch's allocator tells of has the workspaces of cuBLAS in it.
  const uint64_t planned_bytes = plan.bytes.gpu() + kDeviceWorkspaceBytes;
  const std::string memory =
      measured.gpu_bytes == 0
          ? ""
          : fmt::format(
                "; GPU memory measured {} predicted {} (workspaces {}) ratio {:.3f}",
                format_bytes(measured.gpu_bytes), format_bytes(planned_bytes),
                format_bytes(kDeviceWorkspaceBytes),
                static_cast<double>(measured.gpu_bytes) / static_cast<double>(planned_bytes));
  std::string off;
  for (const auto& [leg, ratio] : legs_off(plan, measured)) {
    off += fmt::format("; {} took {:.2f} x its predicted time ({})", leg_name(leg), ratio,
                       rates_of(leg));
  }
  return fmt::format(
      "step measured {} predicted {} ratio {:.2f}; differs most: {} measured {} "
      "predicted {}{}{}",
      milliseconds(measured.step_s), milliseconds(times.step_s),
      times.step_s > 0 ? measured.step_s / times.step_s : 0.0, worst->first,
      milliseconds(worst->second.second), milliseconds(worst->second.first), off, memory);
}

}  // namespace elixir::planner
