#include "client/ranks/collective_kind.h"

#include "base/enum_names.h"

namespace elixir {
namespace {

constexpr EnumName<CollectiveKind> kNames[] = {{"an all-gather", CollectiveKind::kAllGather},
                                               {"a reduce-scatter", CollectiveKind::kReduceScatter},
                                               {"an exchange of values", CollectiveKind::kValues},
                                               {"a broadcast", CollectiveKind::kBroadcast},
                                               {"a scatter from rank 0", CollectiveKind::kScatter},
                                               {"a gather to rank 0", CollectiveKind::kGather}};

}  // namespace

std::string CollectiveSignature::name() const {
  return fmt::format("{} of {} bytes a rank", name_in(kNames, kind), bytes);
}

}  // namespace elixir
