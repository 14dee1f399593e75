// The header of a safetensors file. The first eight bytes say how many bytes of tensors follow.

#include "checkpoint/safetensors.h"
#include "planner/estimate/stored_model.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  fuzz::Input input(data, size);
  const auto data_bytes = input.take<uint64_t>();
  const Result<planner::StoredModel> model =
      planner::parse_safetensors_header(input.rest_text(), data_bytes);
  if (!fuzz::accepted(model)) return 0;
  // No element is counted twice, and the least type has two bits an element.
  unsigned __int128 numel = model->buffer_bytes;
  for (const planner::NamedShape& parameter : model->parameters) {
    ELIXIR_CHECK(parameter.name.size() <= checkpoints::kMaxNameBytes, "a name");
    ELIXIR_CHECK(parameter.shape.size() <= checkpoints::kMaxDimensions, "dimensions");
    ELIXIR_CHECK(parameter.numel() > 0, "a parameter without elements");
    numel += parameter.numel();
  }
  ELIXIR_CHECK(numel <= static_cast<unsigned __int128>(data_bytes) * 4, "more elements than bytes");
  return 0;
}
