#include "client/collectives/sum_shards.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/check.h"
#include "client/tensors/scalar_type.h"

namespace elixir {
namespace {

constexpr int64_t kTileNumel = 16 * 1024;  // the sum of a tile stays in a core's L1 or L2 cache

}  // namespace

void sum_in_order(const std::vector<const std::byte*>& sources, std::byte* out, uint64_t numel,
                  ComputeType type) {
  ELIXIR_CHECK(!sources.empty(), "a sum of nothing");
  const at::ScalarType scalar = scalar_type(type);
  const auto bytes = static_cast<int64_t>(element_bytes(type));
  const auto end_of_all = static_cast<int64_t>(numel);
  const int64_t tiles = (end_of_all + kTileNumel - 1) / kTileNumel;
  at::parallel_for(0, tiles, 1, [&](int64_t first, int64_t last) {
    const at::Tensor sum = at::empty({kTileNumel}, at::kFloat), term = at::empty_like(sum);
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t begin = tile * kTileNumel;
      const int64_t count = std::min(kTileNumel, end_of_all - begin);
      const auto piece = [&](const std::byte* memory) {
        return at::from_blob(const_cast<std::byte*>(memory) + begin * bytes, {count}, scalar);
      };
      const at::Tensor part = sum.narrow(0, 0, count), wide = term.narrow(0, 0, count);
      part.copy_(piece(sources[0]));
      for (size_t i = 1; i < sources.size(); ++i) {
        // Widened by a copy of its own: an addition of mixed types is a slower loop in torch.
        part.add_(scalar == at::kFloat ? piece(sources[i]) : wide.copy_(piece(sources[i])));
      }
      piece(out).copy_(part);
    }
  });
}

}  // namespace elixir
