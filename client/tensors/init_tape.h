#pragma once

// What a tensor made under MetaInit remembers. A storage's content is immutable and refers to the
// content before it: an operator that writes makes a new one, an operator that overwrites
// everything makes one that refers to nothing, and what nobody refers to is gone.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

namespace elixir {

struct TapeContent;

// A tensor without memory as an operator saw it: the storage's content then, and the geometry.
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
    int64_t element = -1;  // of a list of tensors; -1: the argument itself
    TapedTensor tensor;
  };
  struct RealTensor {  // that it read: must not be written to before the last replay
    at::Tensor tensor;
    int64_t version = 0;
  };

  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments = {};  // nothing where a slot belongs; generators are copies
  std::vector<Slot> slots = {};
  std::vector<RealTensor> real = {};
  bool random = false;
  uint64_t seed = 0;  // of a random operator without a generator of its own
};

struct TapeContent {
  uint64_t storage = 0;  // its number
  size_t bytes = 0;
  std::shared_ptr<const TapeContent> before = {};  // null: nothing of it is left
  std::shared_ptr<const TapeCall> call = {};       // null: never written
  int64_t result = -1;  // of the call, whose memory it is; -1: the call wrote in place
};

// The content of a tensor's storage; null for one that has no tape.
std::shared_ptr<const TapeContent> tape_content(const at::Tensor& tensor);

// Gives the storage of a meta tensor this content. The first time, also a number.
void set_tape_content(const at::Tensor& tensor, TapeContent content);

// A new tensor in real memory on the CPU. Throws elixir::Error as materialise() does.
at::Tensor replay(const TapedTensor& tensor);

}  // namespace elixir
