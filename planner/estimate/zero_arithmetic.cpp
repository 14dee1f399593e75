#include "planner/estimate/zero_arithmetic.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/units.h"
#include "base/wrapped.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kFp16Bytes = 2;
constexpr uint64_t kGptActivations = 12;  // per token, layer and width

Json known(uint64_t value) { return value > 0 ? Json(value) : Json(); }

std::string billions(uint64_t params) {
  return fmt::format("{:.3g} B", static_cast<double>(params) * 1e-9);
}

}  // namespace

ZeroArithmetic zero_arithmetic(const ZeroRequest& request) {
  ELIXIR_CHECK(request.gpus > 0, "no GPUs");
  const uint64_t params = uint64_t{request.gpus} << 20U;  // shards without a rest
  ZeroArithmetic zero;
  for (size_t i = 0; i < zero.largest_params.size(); ++i) {
    const uint64_t bytes =
        state_bytes(kStateStrategies[i], {.params = params, .gpus = request.gpus}).gpu();
    const double bytes_per_param = static_cast<double>(bytes) / static_cast<double>(params);
    zero.largest_params[i] =
        static_cast<uint64_t>(static_cast<double>(request.gpu_memory_bytes) / bytes_per_param);
  }
  zero.checkpoint_bytes =
      kFp16Bytes * request.shape.width * request.batch * request.seq * request.shape.layers;
  zero.activation_bytes = kGptActivations * zero.checkpoint_bytes;
  zero.p_a_bytes = zero.checkpoint_bytes / request.gpus;
  return zero;
}

std::string to_json(const ZeroArithmetic& zero) {
  Json largest;
  for (size_t i = 0; i < zero.largest_params.size(); ++i) {
    largest[strategy_name(kStateStrategies[i])] = known(zero.largest_params[i]);
  }
  const bool activations = zero.activation_bytes > 0;
  return Json({{"largest_params", std::move(largest)},
               {"activation_bytes", known(zero.activation_bytes)},
               {"checkpoint_bytes", known(zero.checkpoint_bytes)},
               {"p_a_bytes", known(zero.p_a_bytes)},
               {"p_a_cpu_bytes", activations ? Json(0) : Json()}})
      .dump();
}

std::string to_text(const ZeroArithmetic& zero, uint64_t own_bytes) {
  std::string text;
  if (zero.largest_params[0] > 0) {
    text += fmt::format(
        "Largest models by ZeRO's arithmetic (arXiv 1910.02054, table 2; 16 bytes per parameter "
        "and nothing else in memory): ddp {}, zero1 {}, zero2 {}, zero3 {}.\n",
        billions(zero.largest_params[0]), billions(zero.largest_params[1]),
        billions(zero.largest_params[2]), billions(zero.largest_params[3]));
  }
  if (zero.activation_bytes > 0) {
    text += fmt::format(
        "Activations by ZeRO's arithmetic: {} (12 x width x tokens x layers in FP16), or {} of "
        "checkpoints; with P_a {} on each GPU, with P_a+cpu none. P_a needs tensor parallelism, "
        "which Elixir does not have.{}\n",
        format_bytes(zero.activation_bytes), format_bytes(zero.checkpoint_bytes),
        format_bytes(zero.p_a_bytes),
        own_bytes > 0 ? fmt::format(" Elixir's profile counts {} at the peak of a step.",
                                    format_bytes(own_bytes))
                      : "");
  }
  return text.empty() ? text : wrapped(text, {}) + "\n";
}

}  // namespace elixir::planner
