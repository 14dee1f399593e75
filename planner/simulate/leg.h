#pragma once

#include <array>
#include <cstdint>

#include "base/enum_names.h"

namespace elixir::planner {

// What a step's time goes to: operators, each direction of the link, collectives, elixird's update.
enum class Leg : uint8_t { kCompute, kH2d, kD2h, kG2g, kUpdate };
inline constexpr std::array kLegs = {Leg::kCompute, Leg::kH2d, Leg::kD2h, Leg::kG2g, Leg::kUpdate};
inline constexpr EnumName<Leg> kLegNames[] = {{"compute", Leg::kCompute},
                                              {"h2d", Leg::kH2d},
                                              {"d2h", Leg::kD2h},
                                              {"g2g", Leg::kG2g},
                                              {"update", Leg::kUpdate}};
constexpr const char* leg_name(Leg leg) { return name_in(kLegNames, leg); }

}  // namespace elixir::planner
