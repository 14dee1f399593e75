#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "client/tensors/interception.h"
#include "client/tensors/parameter_reads.h"

namespace elixir {

// The results of products and attention that a checkpointed region's first run computed. Its second
// run takes them, and computes what lies between them again: norms, activation functions and sums
// cost little. The results have the same bits, because they are the same tensors.
//
// A result that the program has written to since is not taken; the second run computes it.
class StoredProducts {
 public:
  // So many products of the region are stored, the first ones. 0: none.
  explicit StoredProducts(uint32_t most) : most_(most) {}

  // ---- the first run ----
  void store(const c10::OperatorHandle& op, std::optional<uint64_t> call,
             const c10::IValue* results);
  // The run has ended: results that it wrote to are dropped.
  void seal();

  // ---- between the runs ----
  // Takes out the tensors that `takes`, so that they may go elsewhere.
  std::vector<at::Tensor> take_out(const std::function<bool(const at::Tensor&)>& takes);
  // REQUIRES: those that were taken out, in order.
  void put_back(const std::vector<at::Tensor>& tensors);

  // ---- the second run ----
  // Begins anew: a run before may have ended early, and it keeps the results that it took.
  void begin_taking() { taken_ = 0; }
  // The results of the next product, if it was called as in the first run.
  std::optional<c10::SmallVector<c10::IValue, 2>> take(std::optional<uint64_t> call);

  // The region has run again.
  void drop();

  bool any() const { return !products_.empty(); }
  bool wants_more() const { return products_.size() < most_; }

 private:
  struct Product {
    std::optional<uint64_t> call;  // CallQuestion::kValues
    c10::SmallVector<c10::IValue, 2> results = {};
    ParameterReads versions = {};                  // each tensor's
    c10::SmallVector<uint32_t, 2> taken_out = {};  // indices of results
  };
  static bool unwritten(const Product& product);

  uint32_t most_;
  size_t taken_ = 0;
  std::vector<Product> products_;
};

// Observes a region's first run and stores its products.
class StoringRun final : public OperatorObserver {
 public:
  // `beside` observes the operators, too, and may be null. Both must outlive this.
  StoringRun(StoredProducts* products, OperatorObserver* beside)
      : products_(*products), beside_(beside) {}

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
           std::vector<c10::IValue>* stack) override;

 private:
  StoredProducts& products_;
  OperatorObserver* const beside_;
  int depth_ = 0;  // operators around the one that begins
};

}  // namespace elixir
