#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace elixir::shm {

// How ranks share chunks. kHost: all on one node; every rank brings its gradients of whole chunks
// to elixird, which sums them. kCollective: the trainers sum among themselves, and a rank brings
// its shard's sum.
enum class Exchange : uint32_t { kHost = 0, kCollective = 1 };
inline constexpr EnumName<Exchange> kExchangeNames[] = {{"host", Exchange::kHost},
                                                        {"collective", Exchange::kCollective}};
constexpr const char* exchange_name(Exchange exchange) { return name_in(kExchangeNames, exchange); }

}  // namespace elixir::shm
