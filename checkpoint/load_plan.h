#pragma once

// Which bytes of a stored folder become which elements of a model's states, and reading them.

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/stored_folder.h"

namespace elixir::checkpoints {

// An array of states. kMasterLow: what completes a BF16 parameter to its FP32 master (I16);
// kMaster: the master of an FP16 parameter (F32).
enum class StateKind : uint8_t { kParam, kExpAvg, kExpAvgSq, kMasterLow, kMaster };
// "exp_avg", "exp_avg_sq", "master_low", "master": a tensor is "state.<parameter>.<this>"; that of
// kParam has the parameter's own name.
const char* state_name(StateKind kind);

struct WantedParameter {
  std::string name;
  std::vector<int64_t> shape;
  bool trained = true;  // has optimizer states
};

// Elements [first, first + numel) of a parameter, in `dtype` (kParam: BF16, F16, F32, F64; the
// others: F32, I16).
struct LoadRange {
  uint32_t parameter = 0;  // number in the list of wanted ones
  StateKind kind = StateKind::kParam;
  const Dtype* dtype = nullptr;
  uint64_t first = 0, numel = 0;
  uint64_t at = 0;  // byte in the piece
};

struct LoadPiece {
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0;
  std::optional<uint64_t> xxh3 = {};   // none: nobody wrote one
  std::vector<LoadRange> ranges = {};  // in the order of their bytes
};

struct LoadPlan {
  // Parameters first: what completes a master stands behind what it completes.
  std::vector<LoadPiece> params, states;
  std::vector<uint64_t> updates;  // by wanted parameter: Adam's count; 0 without states
  // By wanted parameter: its name in the folder; "": it is left out there (Manifest::left_out).
  std::vector<std::string> stored_names;
  uint32_t left_out = 0;            // so many: none of them is trained
  std::vector<std::string> copies;  // in the folder, and nothing but copies: see plan_load()
  bool has_states = false;
  uint64_t bytes = 0;
};

struct LoadChoice {
  bool states = true;  // where the folder has them
  // Tensors of the folder's model that nobody wants: an error that names one, unless they are known
  // not to be parameters (whole numbers, causal masks, rotary frequencies) or are in this list.
  std::vector<std::string> ignored = {};
  bool allow_rest = false;  // true: no such error, for those who want a part
  bool any_dtype = false;   // true: kParam of any type, for buffers
};

// kBadInput, with folder, tensor and the nearest name there is: one that is missing or that nobody
// wants, another shape, a type that cannot be read, states of some parameters and not of others,
// pieces that cut an element. A plain Hugging Face model's names may all lack a first part that
// those wanted have ("transformer."), or have one more. Files may hold a tied output projection
// ("lm_head.weight") beside the token embedding, as transformers takes it: where its bytes are the
// same, which are compared here, it is a copy that nobody needs.
Result<LoadPlan> plan_load(const StoredFolder& folder, std::span<const WantedParameter> wanted,
                           const LoadChoice& choice = {});

struct ReadProgress {
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> cancelled{false};
};

// Takes what was read. Any thread, several at a time, of different ranges. `bytes` begin at a
// multiple of the element's bytes in memory.
class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual void take(const LoadRange& range, std::span<const std::byte> bytes) = 0;
};

// Reads the pieces on `threads` threads, a piece at a time each, checks its hash, then hands out
// its ranges. kBadInput, with file and tensor, for bytes that are missing, unreadable or not those
// that were written: what the sink holds is worth nothing then. kUnavailable when cancelled.
Status read_pieces(const StoredFolder& folder, std::span<const LoadPiece> pieces, uint32_t threads,
                   ReadProgress* progress, StateSink& sink);

// Reads all of a checkpoint and compares it with its manifest. kBadInput as above.
Status verify(const StoredFolder& folder, uint32_t threads, ReadProgress* progress);

}  // namespace elixir::checkpoints
