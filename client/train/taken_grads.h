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

// What the .grad of each trained parameter says of the gradients that have gone to elixird in this
// step: a mark where one has (client/tensors/grad_mark.h). A mark that is missing was taken away by
// zero_grad() of the module or of another optimizer, or by hand. After the step marks stay until
// zero_grad(), since torch's gradients do: reading one is an error. Under the engine's mutex.
// Backward passes may run in other threads while dropped_before() and take() are called, whose
// caller holds the parameter's accumulator (`its`), and mark() in the same hold of it; as with
// torch's own optimizers none runs during step() and zero_grad(), which ask for the rest. Throws
// elixir::Error.
class TakenGrads {
 public:
  // The trained ones are the first of `parameters`, which must outlive this.
  explicit TakenGrads(const std::vector<ModuleParameter>& parameters);

  uint32_t size() const { return static_cast<uint32_t>(marks_.size()); }

  // Autograd has added to parameter `index`. True: the gradients of this step were dropped before,
  // by another's zero_grad(), all of them: clear() makes that known here. Empty: another thread's
  // pass adds to a gradient that would tell, so that it is to be asked again, all locks let go.
  // Throws kInvalidArgument where some were dropped and others were not.
  std::optional<bool> dropped_before(uint32_t index, const AccumulatorLock& its) const;
  // The same at the end of a step, when no pass runs.
  bool dropped() const;

  // What .grad holds of gradients that have not gone, out of it; undefined: nothing.
  at::Tensor take(uint32_t index, const AccumulatorLock& its);
  // Throws kInvalidArgument where a program has written, through a handle of its own, to the memory
  // of a gradient that has been taken since zero_grad(): torch would see it.
  void check_unchanged() const;
  // It has gone.
  void mark(uint32_t index);
  // No gradient has gone; the marks are away.
  void clear();
  // No gradient of the next step has gone; the marks stay.
  void end_step();
  // A mark of an earlier step is there still, or was added to: zero_grad() was not called.
  bool has_old() const;

  // zero_grad(set_to_none = false) leaves zeros in torch, with which a parameter is moved by its
  // decay and momentum. Before clear(), which forgets which were zeroed, and before the step.
  void note_zeroed();
  // It was, in this step.
  bool was_zeroed(uint32_t index) const { return zeroed_[index] != 0; }
  void forget_zeroed();

 private:
  bool is_marked(uint32_t index) const;
  bool holds_mark(uint32_t index) const;
  void watch(uint32_t index, const at::Tensor& grad);

  const std::vector<ModuleParameter>& parameters_;
  std::vector<at::Tensor> marks_;  // by parameter; made when first needed
  std::vector<uint8_t> gone_;      // by parameter: a gradient has, in this step
  std::vector<uint8_t> old_;       // by parameter: the mark is of an earlier step
  std::vector<uint8_t> zeroed_;    // by parameter
  uint32_t last_ = UINT32_MAX;     // the last of them, if any
  // Memory of taken gradients that a program may reach, too. It is not kept.
  struct Watched {
    uint32_t index;                                     // of one of its parameters
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that its address is no other's
    c10::VariableVersion version;
    uint32_t seen;                       // the version when the last of them was taken
    std::unordered_set<int64_t> begins;  // where in it gradients were
    bool written = false, old = false;   // old: of an earlier step
  };
  std::unordered_map<const c10::StorageImpl*, Watched> watched_;
  bool added_to_old_ = false;  // autograd has, in this step
};

}  // namespace elixir
