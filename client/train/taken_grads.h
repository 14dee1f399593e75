#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace elixir {

class AccumulatorLock;
struct ModuleParameter;

// Marks the .grad of each trained parameter whose gradient has gone to elixird in this step
// (client/tensors/grad_mark.h). If a mark is missing, the program has removed it, or zero_grad() of
// the module or of another optimizer has. After the step marks stay until zero_grad(), as torch's
// gradients do: reading one is an error.
//
// Used under the engine's mutex. Backward passes may run in other threads during dropped_before(),
// take() and mark(). The caller of the first two holds the parameter's accumulator (`its`), and
// calls mark() while it still does. As with torch's own optimizers, no backward pass runs during
// step() and zero_grad(), which call the other functions. Throws elixir::Error.
class TakenGrads {
 public:
  // The trained ones are the first of `parameters`, which must outlive this.
  explicit TakenGrads(const std::vector<ModuleParameter>& parameters);

  uint32_t size() const { return static_cast<uint32_t>(marks_.size()); }

  // Call it when autograd has added to parameter `index`. True: another optimizer's zero_grad() has
  // dropped all earlier gradients of this step; call clear() then. Empty: another thread's pass is
  // adding to a gradient that must be checked; release all locks and call again. Throws
  // kInvalidArgument if some gradients were dropped and others were not.
  std::optional<bool> dropped_before(uint32_t index, const AccumulatorLock& its) const;
  // As dropped_before(), for the end of a step, when no backward pass runs.
  bool dropped() const;

  // Takes from .grad the gradients that have not gone to elixird; undefined if there are none.
  at::Tensor take(uint32_t index, const AccumulatorLock& its);
  // Throws kInvalidArgument if the program has written to the memory of a gradient that was taken
  // since zero_grad(), through a handle of its own. With torch's optimizer such a write would
  // count.
  void check_unchanged() const;
  // Call it when the gradient of parameter `index` has gone to elixird.
  void mark(uint32_t index);
  // Forgets all gradients of this step that have gone, and removes the marks.
  void clear();
  // Begins the next step: no gradient of it has gone yet. The marks stay.
  void end_step();
  // Whether a mark of an earlier step is still there, or was added to: zero_grad() was not called.
  bool has_old() const;

  // Notes which gradients zero_grad(set_to_none = false) has zeroed. In torch, decay and momentum
  // still change such a parameter. Call it before the step, and before clear(), which forgets these
  // gradients.
  void note_zeroed();
  // Whether the parameter's gradient was zeroed in this step.
  bool was_zeroed(uint32_t index) const { return zeroed_[index] != 0; }
  void forget_zeroed();

 private:
  bool is_marked(uint32_t index) const;
  bool holds_mark(uint32_t index) const;
  void watch(uint32_t index, const at::Tensor& grad);

  const std::vector<ModuleParameter>& parameters_;
  std::vector<at::Tensor> marks_;  // by parameter; made when first needed
  std::vector<uint8_t> gone_;      // by parameter: a gradient has gone in this step
  std::vector<uint8_t> old_;       // by parameter: the mark is of an earlier step
  std::vector<uint8_t> zeroed_;    // by parameter
  uint32_t last_ = UINT32_MAX;     // the last parameter that was marked, if any
  // Memory of taken gradients that the program may also reach. These entries do not keep it alive.
  struct Watched {
    uint32_t index;                                     // a parameter whose gradient is here
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that no other storage gets its address
    c10::VariableVersion version;
    uint32_t seen;                       // the version when the last of them was taken
    std::unordered_set<int64_t> begins;  // offsets of the gradients in it
    bool written = false, old = false;   // old: from an earlier step
  };
  std::unordered_map<const c10::StorageImpl*, Watched> watched_;
  bool added_to_old_ = false;  // autograd has added to an old mark in this step
};

}  // namespace elixir
