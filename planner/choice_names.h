#pragma once

// Names and limits of the choices in choices.h, for programs' flags.

#include "base/enum_names.h"
#include "planner/choices.h"
#include "shm/shape.h"
#include "shm/step_rules.h"

namespace elixir {

using shm::kExchangeNames;
using shm::kMaxAccumulate;

// A choice that may be left open is a std::optional<UpdateMode>. add_choice (base/cli.h) reads it
// by this table and "auto".
inline constexpr EnumName<UpdateMode> kUpdateModeNames[] = {{"early", UpdateMode::kEarly},
                                                            {"deferred", UpdateMode::kDeferred},
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
