// elixird's status, as elixirctl and elixir-run read it. A terminal obeys nothing of what is shown.

#include <algorithm>
#include <string>

#include "ctl/status_client.h"
#include "ctl/status_text.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  const std::string_view answer = fuzz::Input(data, size).rest_text();
  const std::string text = ctl::status_text(answer) + ctl::version_of(answer).status.message();
  const bool plain = std::all_of(text.begin(), text.end(), [](char character) {
    const auto code = static_cast<unsigned char>(character);
    return character == '\n' || (code >= 0x20 && code != 0x7f);
  });
  ELIXIR_CHECK(plain, "a control character is shown");
  ctl::job_names(answer);
  return 0;
}
