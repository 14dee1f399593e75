#pragma once

#include "base/enum_names.h"
#include "planner/choices.h"

namespace elixir {

inline constexpr EnumName<UpdateMode> kUpdateModeNames[] = {{"deferred", UpdateMode::kDeferred},
                                                            {"immediate", UpdateMode::kImmediate},
                                                            {"sync", UpdateMode::kSync}};

}  // namespace elixir

namespace elixir::planner {

inline constexpr EnumName<Leg> kLegNames[] = {{"compute", Leg::kCompute},
                                              {"h2d", Leg::kH2d},
                                              {"d2h", Leg::kD2h},
                                              {"g2g", Leg::kG2g},
                                              {"update", Leg::kUpdate}};
constexpr const char* leg_name(Leg leg) { return name_in(kLegNames, leg); }

}  // namespace elixir::planner
