// The pickle in a file of torch.save(), as elixir-convert reads it.

#include <vector>

#include "models/pickle.h"
#include "tests/fuzz/fuzz_input.h"

namespace elixir::fuzz {
namespace {

// What readers of tensors rely on: no index leaves the storage.
void check_tensor(const pickle::Tensor& tensor) {
  ELIXIR_CHECK(tensor.sizes.size() == tensor.strides.size(), "a stride for each size");
  ELIXIR_CHECK(tensor.sizes.size() <= pickle::kMaxDimensions, "dimensions");
  unsigned __int128 last = tensor.offset;
  bool empty = false;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    ELIXIR_CHECK(tensor.sizes[i] >= 0 && tensor.strides[i] >= 0, "a size below 0");
    empty = empty || tensor.sizes[i] == 0;
    if (empty) continue;
    last += static_cast<unsigned __int128>(tensor.sizes[i] - 1) *
            static_cast<unsigned __int128>(tensor.strides[i]);
  }
  ELIXIR_CHECK(empty || last < tensor.storage_numel, "it leaves its storage");
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  const auto* const first = reinterpret_cast<const char*>(data);
  const Result<pickle::Document> document =
      pickle::Document::parse(std::vector<char>(first, first + size));
  if (!fuzz::accepted(document)) return 0;
  ELIXIR_CHECK(document->size() <= pickle::kMaxValues, "values");
  for (uint32_t number = 0; number < document->size(); ++number) {
    const pickle::Value& value = document->at(number);
    for (const uint32_t item : value.items) ELIXIR_CHECK(item < document->size(), "an item");
    ELIXIR_CHECK(value.kind != pickle::Kind::kDict || value.items.size() % 2 == 0, "a dict");
    if (value.kind == pickle::Kind::kTensor) fuzz::check_tensor(document->tensor(value));
  }
  document->find(document->root(), "state");
  return 0;
}
