// What a trainer says of a save or a load, beside its message (checkpoint/details.h). The first
// byte chooses: all of it as it is, or JSON up to a zero, of which the length is written here.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/details.h"
#include "tests/fuzz/fuzz_input.h"

namespace elixir::fuzz {
namespace {

using checkpoints::Details;

void check_shape(const std::vector<int64_t>& shape) {
  ELIXIR_CHECK(shape.size() <= checkpoints::kMaxDimensions, "{} dimensions", shape.size());
  for (const int64_t dimension : shape) ELIXIR_CHECK(dimension >= 0, "{}", dimension);
}

// Never more memory than the input has bytes, whatever they say.
void check_details(const Details& details, size_t bytes_most) {
  for (const std::vector<int64_t>& shape : details.shapes) check_shape(shape);
  size_t bytes = 0;
  std::set<std::string> tensors, files;
  for (const checkpoints::ExtraValues& extra : details.extras) {
    check_shape(extra.shape);
    ELIXIR_CHECK(extra.dtype != nullptr && tensors.insert(extra.name).second, "{}", extra.name);
    bytes += extra.bytes.size();
  }
  for (const checkpoints::UserFile& file : details.files) {
    ELIXIR_CHECK(checkpoints::check_user_file_name(file.name).ok(), "{}", file.name);
    ELIXIR_CHECK(files.insert(file.name).second, "{} twice", file.name);
    bytes += file.bytes.size();
  }
  ELIXIR_CHECK(bytes <= bytes_most, "{} bytes of {}", bytes, bytes_most);
}

std::vector<std::byte> details_of(Input& input) {
  const bool whole = !input.flag();
  const std::span<const std::byte> rest = input.rest();
  if (whole) return {rest.begin(), rest.end()};
  const uint64_t length = std::min(input.rest_text().find('\0'), rest.size());
  const auto head = std::as_bytes(std::span(&length, 1));
  std::vector<std::byte> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), rest.begin(), rest.begin() + static_cast<ptrdiff_t>(length));
  if (length < rest.size()) {
    bytes.insert(bytes.end(), rest.begin() + static_cast<ptrdiff_t>(length) + 1, rest.end());
  }
  return bytes;
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  fuzz::Input input(data, size);
  const std::vector<std::byte> bytes = fuzz::details_of(input);
  const Result<checkpoints::Details> details = checkpoints::decode_details(bytes);
  if (!fuzz::accepted(details, Code::kProtocol)) return 0;
  fuzz::check_details(*details, size);
  // What was accepted says the same once more.
  const std::vector<std::byte> encoded = checkpoints::encode_details(*details);
  const Result<checkpoints::Details> again = checkpoints::decode_details(encoded);
  ELIXIR_CHECK(again.ok(), "{}", again.status().message());
  ELIXIR_CHECK(checkpoints::encode_details(*again) == encoded, "another encoding");
  return 0;
}
