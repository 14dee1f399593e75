#pragma once

// Reads a pickle of plain values and torch's tensors, as torch.save() writes it. Pickles ask Python
// to import and call functions; this reader never does. A class that it does not know becomes an
// opaque value. Opcodes: Python's Lib/pickletools.py. Tensors: torch/_utils.py, _rebuild_tensor_v2.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elixir::pickle {

inline constexpr size_t kMaxBytes = size_t{64} << 20;  // enough for 100,000 parameters' states
inline constexpr size_t kMaxValues = 4'000'000;
inline constexpr size_t kMaxDimensions = 16;
inline constexpr size_t kMaxClassBytes = 512;

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kTuple,
  kList,
  kDict,
  kClass,    // "module.name", the class itself
  kStorage,  // a storage: bytes in the file
  kTensor,
  kOpaque  // an object of an unknown class; its text is the class
};

// A view of a storage: element (i0, ...) is at offset + i0 strides0 + .... A whole storage has no
// sizes.
struct Tensor {
  std::string_view type;  // for example "Float" of torch.FloatStorage
  std::string_view key;   // names the file's record "data/KEY"
  uint64_t storage_numel = 0;
  uint64_t offset = 0;
  std::vector<int64_t> sizes = {}, strides = {};
};

struct Value {
  Kind kind = Kind::kNone;
  int64_t integer = 0;  // also for kBool
  double number = 0;
  std::string_view text = {};        // for kString, kClass, kOpaque
  std::vector<uint32_t> items = {};  // numbers of values; kDict: key, value, key, ...
  uint32_t tensor = 0;               // for kStorage, kTensor
};

// The values of a pickle, by number. They may form a graph, so no function recurses through them.
class Document {
 public:
  // kBadInput: the bytes are no pickle, are beyond a limit, or use a feature that tensors' files do
  // not have.
  static Result<Document> parse(std::vector<char> bytes);

  const Value& root() const { return values_[root_]; }
  size_t size() const { return values_.size(); }
  const Value& at(uint32_t number) const { return values_[number]; }
  // REQUIRES: value.kind is kTensor or kStorage.
  const Tensor& tensor(const Value& value) const { return tensors_[value.tensor]; }
  // The dict's value for a key; null if it has none.
  const Value* find(const Value& dict, std::string_view key) const;

 private:
  friend class Machine;

  std::vector<char> bytes_;  // texts of values point into it
  std::deque<std::string> texts_;
  std::vector<Value> values_;
  std::vector<Tensor> tensors_;
  uint32_t root_ = 0;
};

// "a list", for messages.
const char* kind_name(Kind kind);

}  // namespace elixir::pickle
