// What ranks and starters write as text: a rank's entry at the rendezvous, Slurm's lists, sizes.

#include <string>

#include "base/units.h"
#include "client/ranks/member.h"
#include "client/ranks/slurm_lists.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  fuzz::Input input(data, size);
  const auto node = input.take<uint32_t>();
  const std::string_view text = input.rest_text();
  if (const Result<Member> member = decode_member(text); member.ok()) {
    const Result<Member> again = decode_member(encode_member(*member));
    ELIXIR_CHECK(again.ok(), "{}", again.status().message());
    ELIXIR_CHECK(encode_member(*again) == encode_member(*member), "another rank was read");
  }
  ELIXIR_CHECK(first_slurm_host(text).size() <= text.size(), "a host longer than its list");
  slurm_tasks_on_node(text, node);
  if (const Result<uint64_t> bytes = parse_bytes(std::string(text)); bytes.ok()) {
    const Result<uint64_t> again = parse_bytes(std::to_string(*bytes));
    ELIXIR_CHECK(again.ok() && *again == *bytes, "{} bytes", *bytes);
  }
  return 0;
}
