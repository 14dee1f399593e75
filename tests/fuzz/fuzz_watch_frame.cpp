// What ranks say to one another on the watch's connections. The stream arrives in pieces of the
// length that the first byte says, at most kMostPieces, and gives the same frames as in one.

#include <algorithm>
#include <string>
#include <vector>

#include "client/ranks/watch_connection.h"
#include "tests/fuzz/fuzz_input.h"

namespace elixir::fuzz {
namespace {

constexpr size_t kMostPieces = 64;  // single bytes of a long stream would only take long

struct Taken {
  std::vector<std::string> frames;  // encoded again
  std::string left;
  bool refused = false;
};

Taken take_all(std::string_view stream, size_t piece_bytes) {
  Taken taken;
  while (!taken.refused && !stream.empty()) {
    const size_t piece = std::min(piece_bytes, stream.size());
    taken.left += stream.substr(0, piece);
    stream.remove_prefix(piece);
    WatchFrame frame;
    for (int got = 1; got > 0;) {
      const size_t before = taken.left.size();
      got = take_watch_frame(&taken.left, &frame);
      if (got <= 0) {
        taken.refused = got < 0;
        break;
      }
      ELIXIR_CHECK(frame.text.size() <= kMaxWatchTextBytes, "{} bytes", frame.text.size());
      taken.frames.push_back(encode_watch_frame(frame));
      ELIXIR_CHECK(taken.frames.back().size() == before - taken.left.size(), "another length");
      code_name(frame.code);
    }
  }
  return taken;
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  fuzz::Input input(data, size);
  const size_t chosen = 1 + input.below(64);
  const std::string_view stream = input.rest_text();
  const size_t piece = std::max(chosen, stream.size() / fuzz::kMostPieces);
  const fuzz::Taken whole = fuzz::take_all(stream, stream.size());
  const fuzz::Taken pieces = fuzz::take_all(stream, piece);
  ELIXIR_CHECK(whole.frames == pieces.frames && whole.refused == pieces.refused,
               "{} frames as a whole, {} in pieces of {}", whole.frames.size(),
               pieces.frames.size(), piece);
  std::string again;
  for (const std::string& frame : whole.frames) again += frame;
  ELIXIR_CHECK(stream.starts_with(again), "a frame changed on its way");
  return 0;
}
