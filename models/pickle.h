#pragma once

// What a pickle of plain values and torch's tensors says, as torch.save() writes them. Nothing is
// imported or called, as pickles ask of Python: a class that is not known here is an opaque value.
// Opcodes: Python's Lib/pickletools.py. Tensors: torch/_utils.py, _rebuild_tensor_v2.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elixir::pickle {

inline constexpr size_t kMaxBytes = size_t{64} << 20;  // of a pickle: states of 100,000 parameters
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
  kClass,    // "module.name", of which nothing was made
  kStorage,  // bytes of the file
  kTensor,
  kOpaque  // an object of a class that is not known here; its text is the class
};

// Elements of a storage: [offset + i0 strides0 + ...]. A storage's own: no sizes.
struct Tensor {
  std::string_view type;  // "Float" of torch.FloatStorage
  std::string_view key;   // of the file's record "data/KEY"
  uint64_t storage_numel = 0;
  uint64_t offset = 0;
  std::vector<int64_t> sizes = {}, strides = {};
};

struct Value {
  Kind kind = Kind::kNone;
  int64_t integer = 0;  // of kBool, too
  double number = 0;
  std::string_view text = {};        // of kString, kClass, kOpaque
  std::vector<uint32_t> items = {};  // numbers of values; of kDict: key, value, key, ...
  uint32_t tensor = 0;               // of kStorage, kTensor
};

// Values by number: a graph, as pickles may have one, so that nothing recurses through it.
class Document {
 public:
  // kBadInput: it is no pickle, goes beyond a limit, or has what tensors' files do not.
  static Result<Document> parse(std::vector<char> bytes);

  const Value& root() const { return values_[root_]; }
  size_t size() const { return values_.size(); }
  const Value& at(uint32_t number) const { return values_[number]; }
  // REQUIRES: of kTensor or kStorage.
  const Tensor& tensor(const Value& value) const { return tensors_[value.tensor]; }
  // Of a dict; null where it has none.
  const Value* find(const Value& dict, std::string_view key) const;

 private:
  friend class Machine;

  std::vector<char> bytes_;  // texts lie in it
  std::deque<std::string> texts_;
  std::vector<Value> values_;
  std::vector<Tensor> tensors_;
  uint32_t root_ = 0;
};

// "a list", for messages.
const char* kind_name(Kind kind);

}  // namespace elixir::pickle
