#include "client/ranks/collective_kind.h"

#include <fmt/core.h>

namespace elixir {
namespace {

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "an all-gather";
    case CollectiveKind::kReduceScatter:
      return "a reduce-scatter";
    case CollectiveKind::kValues:
      return "an exchange of values";
    case CollectiveKind::kBroadcast:
      return "a broadcast";
    case CollectiveKind::kScatter:
      return "a scatter from rank 0";
    case CollectiveKind::kGather:
      return "a gather to rank 0";
  }
  return "a collective";
}

}  // namespace

std::string CollectiveSignature::name() const {
  return fmt::format("{} of {} bytes a rank", name_of(kind), bytes);
}

}  // namespace elixir
