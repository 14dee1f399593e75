#pragma once

#include "base/enum_names.h"
#include "client/plan/options.h"

namespace elixir {

inline constexpr EnumName<Strategy> kStrategyNames[] = {
    {"auto", Strategy::kNone},           {"ddp", Strategy::kDdp},
    {"zero1", Strategy::kZero1},         {"zero2", Strategy::kZero2},
    {"zero3", Strategy::kZero3},         {"rcache-max", Strategy::kRcacheMax},
    {"rcache-min", Strategy::kRcacheMin}};

}  // namespace elixir
