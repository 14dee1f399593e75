#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "client/tensors/interception.h"
#include "client/tensors/known_regions.h"
#include "client/tensors/left_out.h"
#include "client/tensors/stored_products.h"

namespace elixir {

// A checkpointed region runs twice, and nobody reads its outputs' values the second time. So the
// operators behind the last one whose result backward reads have no purpose then. In a transformer
// block they are the last product and the sum behind it. The first second run of a kind of region
// finds them, and later ones leave them out.
//
// The caller of such an operator gets tensors of the same shape without memory. LibTorch throws if
// something asks for their memory. Gradients keep their bits: a run that differs from the observed
// one ends, and the region then runs again as a whole (SecondRun::ends()).

// One second run. Have it observe the region's operators (ObservedOperators), on their thread.
class SecondRun final : public OperatorObserver {
 public:
  // Takes what the first run has stored of its products. `beside` observes the operators that run,
  // and may be null. All must outlive this.
  SecondRun(KnownRegions* regions, uint64_t kind, StoredProducts* products,
            OperatorObserver* beside);

  // Whether it would leave anything out or take anything. If not, it need not observe.
  bool observes() const { return !known_->run_whole || products_.any(); }

  // Throws where operators were left out and this call was not expected.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
           std::vector<c10::IValue>* stack) override;

  // Call it when the function has returned and nothing of this run is held but the graph that
  // backward will walk. True: the graph is right. False: something differed from the observed run,
  // so the function must run again as a whole, and regions that begin like this one will.
  bool ends();
  // The function threw. True: it did because operators were left out, so it must run again as a
  // whole.
  bool fails(const std::exception& failure);
  // The function returned other tensors than in forward.
  void returned_others() { departed_ = left_out_ > 0; }

  // Operators at the end of this run that ran, and will be left out of later ones.
  uint32_t will_be_left_out() const { return will_be_left_out_; }

 private:
  struct Observed {
    ObservedCall call;
    uint64_t calls = 0;  // hash of all calls, this one included
  };

  void pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet below,
               std::vector<c10::IValue>* stack);
  void take_or_run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                   std::vector<c10::IValue>* stack);
  size_t first_unneeded() const;
  void learn();
  void give_up();
  bool ended_as_observed() const;

  KnownRegions& regions_;
  const uint64_t kind_;
  StoredProducts& products_;
  OperatorObserver* const beside_;
  const std::shared_ptr<const KnownRegion> known_;
  int depth_ = 0;   // operators around the one that begins
  uint64_t calls_;  // hash of all calls so far
  const RegionTail* tail_ = nullptr;
  size_t left_out_ = 0;  // so many operators of tail_
  bool departed_ = false;
  WeakMemory placeholders_;
  std::vector<Observed> observed_;
  uint32_t will_be_left_out_ = 0;
};

}  // namespace elixir
