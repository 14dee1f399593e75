#include "checkpoint/left_out.h"

#include <xxhash.h>

#include <algorithm>

#include "base/check.h"
#include "base/compute_type_names.h"
#include "base/units.h"

namespace elixir::checkpoints {

uint64_t left_out_hash(std::string_view parameter, uint64_t first, size_t element_bytes,
                       std::span<const std::byte> bytes) {
  ELIXIR_CHECK(first % kLeftOutNumel == 0, "from element {} on", first);
  const uint64_t seed = XXH3_64bits(parameter.data(), parameter.size());
  uint64_t sum = 0;
  for (uint64_t piece = first / kLeftOutNumel; !bytes.empty(); ++piece) {
    const size_t taken = std::min<size_t>(bytes.size(), kLeftOutNumel * element_bytes);
    sum += XXH3_64bits_withSeed(bytes.data(), taken, seed + piece);
    bytes = bytes.subspan(taken);
  }
  return sum;
}

Status check_left_out(const StoredFolder& folder, const LeftOut& here) {
  const LeftOut& stored = *folder.manifest->left_out;
  if (here == stored) return Status();
  if (!folder.holds_states_alone()) {
    return error(
        Code::kBadInput,
        "{}: it was saved without what is not trained, {} parameters of {} with the hash {:016x}, "
        "and this model has {} of {} with {:016x}: build it from the same base, in the same type "
        "(Options::dtype)",
        folder.path, stored.parameters, format_bytes(stored.bytes), stored.hash, here.parameters,
        format_bytes(here.bytes), here.hash);
  }
  return error(Code::kBadInput,
               "{}: it holds states alone, of {} parameters of {} in {} with the hash {:016x}, and "
               "this model has {} of {} with {:016x}: load the values that were saved beside it "
               "first, in the same type (Options::dtype)",
               folder.path, stored.parameters, format_bytes(stored.bytes),
               compute_type_name(folder.manifest->type), stored.hash, here.parameters,
               format_bytes(here.bytes), here.hash);
}

}  // namespace elixir::checkpoints
