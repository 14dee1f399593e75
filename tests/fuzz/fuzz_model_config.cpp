// A config.json of Hugging Face's. Of what is accepted every parameter can be listed and counted,
// and the line about unused fields is short.

#include "planner/models/config_json.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  const std::string text(fuzz::Input(data, size).rest_text());
  Result<planner::TransformerConfig> config = planner::transformer_from_config_json(text);
  ELIXIR_CHECK(planner::unused_fields_line("config.json", text).size() < 2048, "a long line");
  if (!fuzz::accepted(config)) return 0;
  // Numbers are the decoder's; as many layers as it allows would only take long.
  unsigned __int128 whole = 0;
  const int64_t layers = config->layers;
  config->layers = 1;
  for (const planner::NamedShape& parameter : planner::transformer_parameters(*config)) {
    ELIXIR_CHECK(!parameter.name.empty(), "a parameter without a name");
    unsigned __int128 numel = 1;
    for (const int64_t length : parameter.shape) {
      ELIXIR_CHECK(length > 0, "{} has a length of {}", parameter.name, length);
      numel *= static_cast<uint64_t>(length);
      ELIXIR_CHECK(numel >> 63 == 0, "{} has too many elements", parameter.name);
    }
    ELIXIR_CHECK(parameter.numel() == static_cast<uint64_t>(numel), "{}", parameter.name);
    whole += numel;
  }
  ELIXIR_CHECK(planner::transformer_numel(*config) == static_cast<uint64_t>(whole), "the sum");
  ELIXIR_CHECK((whole * static_cast<uint64_t>(layers)) >> 63 == 0, "a model beyond 63 bits");
  return 0;
}
