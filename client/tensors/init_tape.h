#pragma once

// The tape of a tensor made under MetaInit: the operators that would have given it its values. A
// storage's content is immutable and refers to the content before it. An operator that writes makes
// a new content. If it overwrites everything, the new content refers to nothing. A content to which
// nothing refers is freed.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

namespace elixir {

struct TapeContent;

// A tensor without memory, as an operator saw it: its storage's content at that time, and its
// geometry.
struct TapedTensor {
  std::shared_ptr<const TapeContent> content;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
};

// A recorded operator.
struct TapeCall {
  struct Slot {
    size_t argument = 0;
    int64_t element = -1;  // index in a list of tensors; -1: the argument itself
    TapedTensor tensor;
  };
  struct RealTensor {  // read by the call; do not write to it before the last replay
    at::Tensor tensor;
    int64_t version = 0;
  };

  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments = {};  // empty for each slot; generators are copies
  std::vector<Slot> slots = {};
  std::vector<RealTensor> real = {};
  bool random = false;
  uint64_t seed = 0;  // for a random operator without a generator of its own
};

struct TapeContent {
  uint64_t storage = 0;  // its number
  size_t bytes = 0;
  std::shared_ptr<const TapeContent> before = {};  // null: no earlier value is left
  std::shared_ptr<const TapeCall> call = {};       // null: never written
  int64_t result = -1;  // the call's result that owns this memory; -1: the call wrote in place
};

// The content of a tensor's storage; null if it has no tape.
std::shared_ptr<const TapeContent> tape_content(const at::Tensor& tensor);

// Gives the storage of a meta tensor this content. The first call for a storage also numbers it.
void set_tape_content(const at::Tensor& tensor, TapeContent content);

// A new tensor in real memory on the CPU. Throws elixir::Error as materialise() does.
at::Tensor replay(const TapedTensor& tensor);

}  // namespace elixir
