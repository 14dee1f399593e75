#include "planner/activations.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/enum_names.h"
#include "base/units.h"

namespace elixir {
namespace {

using Mode = Activations::Mode;

constexpr EnumName<Mode> kModes[] = {{"auto", Mode::kAuto},
                                     {"recompute", Mode::kRecompute},
                                     {"keep", Mode::kKeep},
                                     {"host", Mode::kHost}};
constexpr std::string_view kProducts = "products:", kHost = "host:";

}  // namespace

Result<Activations> parse_activations(std::string_view text) {
  for (const EnumName<Mode>& known : kModes) {
    if (text == known.name) return Activations{.mode = known.value};
  }
  if (text.starts_with(kProducts)) {
    const std::string_view number = text.substr(kProducts.size());
    Activations result{.mode = Mode::kProducts};
    const char* const end = number.data() + number.size();
    const auto [stop, failure] = std::from_chars(number.data(), end, result.products);
    const bool whole = failure == std::errc() && stop == end;
    if (whole && result.products >= 1 && result.products <= kMostRegions) return result;
  }
  if (text.starts_with(kHost)) {
    const Result<uint64_t> bytes = parse_bytes(text.substr(kHost.size()));
    if (bytes.ok() && *bytes > 0) return Activations{.mode = Mode::kHost, .host_bytes = *bytes};
  }
  return error(Code::kInvalidArgument,
               "'{}' is not known; use {}, with K from 1 to {} regions that keep their products, "
               "and BYTES such as 20GiB",
               text.substr(0, 40), kActivationNames, kMostRegions);
}

std::string to_text(const Activations& activations) {
  if (activations.mode == Mode::kHost && activations.host_bytes > 0) {
    return fmt::format("{}{}", kHost, activations.host_bytes);
  }
  if (activations.mode != Mode::kProducts) return name_in(kModes, activations.mode);
  return fmt::format("{}{}", kProducts, activations.products);
}

RegionPlan region_plan_for(const Activations& activations, uint32_t regions) {
  switch (activations.mode) {
    case Mode::kRecompute:
      return {.regions = regions};
    case Mode::kKeep:
      return {.regions = regions, .keep_all = regions};
    case Mode::kProducts:
      return {.regions = regions, .keep_products = std::min(activations.products, regions)};
    case Mode::kHost:
      return {.regions = regions, .host_products = regions, .host_boundaries = regions};
    case Mode::kAuto:
      break;
  }
  ELIXIR_CHECK(false, "what regions keep is the plan's to say");
}

bool is_plan_for(const Activations& activations, const RegionPlan& plan) {
  if (activations.mode == Mode::kAuto) return true;
  if (activations.mode == Mode::kHost) return plan.regions == 0 || plan.sends_any();
  return region_plan_for(activations, plan.regions) == plan;
}

}  // namespace elixir
