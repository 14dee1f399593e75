#pragma once

// Finds which bytes of a stored folder become which elements of a model's states, and reads them.

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/stored_folder.h"

namespace elixir::checkpoints {

// An array of states. kMasterLow: the low halves that complete BF16 parameters to FP32 masters
// (I16). kMaster: the masters of FP16 parameters (F32).
enum class StateKind : uint8_t { kParam, kExpAvg, kExpAvgSq, kMasterLow, kMaster };
// "exp_avg", "exp_avg_sq", "master_low", "master". The tensor is called "state.<parameter>.<this>";
// a tensor of kParam has the parameter's own name.
const char* state_name(StateKind kind);

struct WantedParameter {
  std::string name;
  std::vector<int64_t> shape;
  bool trained = true;  // has optimizer states
};

// Elements [first, first + numel) of a parameter, in `dtype` (kParam: BF16, F16, F32, F64; the
// others: F32, I16).
struct LoadRange {
  uint32_t parameter = 0;  // number in the list of wanted parameters
  StateKind kind = StateKind::kParam;
  const Dtype* dtype = nullptr;
  uint64_t first = 0, numel = 0;
  uint64_t at = 0;  // first byte in the piece
};

struct LoadPiece {
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0;
  std::optional<uint64_t> xxh3 = {};   // empty: the folder has no hash
  std::vector<LoadRange> ranges = {};  // in the order of their bytes
};

struct LoadPlan {
  // Parameters come first, because low halves complete masters that are already loaded.
  std::vector<LoadPiece> params, states;
  std::vector<uint64_t> updates;  // Adam's count, by wanted parameter; 0 without states
  // By wanted parameter: its name in the folder; "" if the folder leaves it out
  // (Manifest::left_out).
  std::vector<std::string> stored_names;
  // How many are left out. None of them is trained, unless the folder holds states alone
  // (Manifest::states_alone), which leaves out all. Whoever loads compares their values
  // (check_left_out).
  uint32_t left_out = 0;
  std::vector<std::string> copies;  // in the folder, and only copies: see plan_load()
  bool has_states = false;
  uint64_t bytes = 0;
};

struct LoadChoice {
  bool states = true;  // load states, if the folder has them
  // A tensor of the folder's model that nobody wants is an error that names it. Exceptions: the
  // tensors in this list, and tensors that are known not to be parameters (whole numbers, causal
  // masks, rotary frequencies).
  std::vector<std::string> ignored = {};
  bool allow_rest = false;  // true: no such error, for callers that want a part
  bool any_dtype = false;   // true: kParam of any type, for buffers
};

// kBadInput, with folder, tensor and the nearest existing name, for: a tensor that is missing or
// that nobody wants, another shape, a type that cannot be read, states of only some parameters,
// states alone if no states are to be loaded, or pieces that cut an element.
//
// All names in a plain Hugging Face model may be without a first part that the wanted names have
// ("transformer."), or may have one more. Its files may hold a tied output projection
// ("lm_head.weight") beside the token embedding, as transformers accepts. If both have the same
// bytes, which are compared here, the projection is a copy that nobody needs.
Result<LoadPlan> plan_load(const StoredFolder& folder, std::span<const WantedParameter> wanted,
                           const LoadChoice& choice = {});

struct ReadProgress {
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> cancelled{false};
};

// Takes the bytes that were read. Any thread calls it, several at a time, for different ranges.
// `bytes` begin at a multiple of the element's bytes in memory.
class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual void take(const LoadRange& range, std::span<const std::byte> bytes) = 0;
};

// Reads the pieces on `threads` threads. Each thread takes a piece at a time, checks its hash, then
// hands out its ranges. kBadInput, with file and tensor, if bytes are missing, unreadable or not
// those that were written. Then the contents of the sink are worth nothing. kUnavailable if
// cancelled.
Status read_pieces(const StoredFolder& folder, std::span<const LoadPiece> pieces, uint32_t threads,
                   ReadProgress* progress, StateSink& sink);

// Reads all of a checkpoint and compares it with its manifest. kBadInput as above.
Status verify(const StoredFolder& folder, uint32_t threads, ReadProgress* progress);

}  // namespace elixir::checkpoints
