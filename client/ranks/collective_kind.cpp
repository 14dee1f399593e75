#include "client/ranks/collective_kind.h"

#include "base/enum_names.h"

namespace elixir {
namespace {

constexpr EnumName<CollectiveKind> kNames[] = {{"an all-gather", CollectiveKind::kAllGather},
                                               {"a reduce-scatter", CollectiveKind::kReduceScatter},
                                               {"an exchange of values", CollectiveKind::kValues},
                                               {"a broadcast", CollectiveKind::kBroadcast},
                                               {"a scatter from rank 0", CollectiveKind::kScatter},
                                               {"a gather to rank 0", CollectiveKind::kGather},
                                               {"the loading of weights", CollectiveKind::kLoad},
                                               {"set_parameter()", CollectiveKind::kSetParameter},
                                               {"release()", CollectiveKind::kRelease},
                                               {"load()", CollectiveKind::kLoadFolder}};

}  // namespace

bool is_call(CollectiveKind kind) { return kind >= CollectiveKind::kLoad; }

std::string CollectiveSignature::name() const {
  if (is_call(kind)) return std::string(name_in(kNames, kind));
  const std::string name = fmt::format("{} of {} bytes a rank", name_in(kNames, kind), bytes);
  return chunk == kNoChunk ? name : fmt::format("{} of chunk {}", name, chunk);
}

}  // namespace elixir
