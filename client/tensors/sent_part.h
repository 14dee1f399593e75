#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/region_plan.h"
#include "client/tensors/activation_host.h"
#include "client/tensors/parameter_reads.h"
#include "client/tensors/stored_products.h"

namespace elixir {

// The inputs of a region that it may send: results of operators before. Parameters, masks and
// tables stay where they are, because others hold them, too.
struct Boundary {
  const void* storage = nullptr;  // its identity
  uint64_t bytes = 0;
};
std::vector<Boundary> boundaries_of(const std::vector<at::Tensor>& inputs);

// The part of a checkpointed region that lies in host memory between its two runs.
class SentPart {
 public:
  SentPart() = default;  // nothing is sent
  // `number`: the region's, on this thread.
  SentPart(const RegionChoice& choice, uint32_t number)
      : choice_(choice), number_(number), host_(choice.sends() ? activation_host() : nullptr) {}

  // At the first run's end. Sends products and inputs as the plan says, and takes them out of
  // `products` and `saved`. An input that another region of this pass has, too, stays: it would
  // take memory anyway.
  void send(StoredProducts* products, std::vector<at::Tensor>* saved);
  // In backward: puts back what send() took. `saved` as they were saved. Throws kInvalidArgument if
  // the program has written to an input since. What was sent ends here, unless the graph is kept
  // for another backward (retain_graph).
  void bring_back(StoredProducts* products, std::vector<at::Tensor>* saved);

 private:
  void check_inputs() const;

  RegionChoice choice_;
  uint32_t number_ = 0;
  std::shared_ptr<ActivationHost> host_;  // null: nothing is sent
  std::shared_ptr<SentTensors> sent_;     // products, then inputs; null: nothing was sent
  size_t n_products_ = 0;
  std::vector<size_t> inputs_;     // by index
  ParameterReads input_versions_;  // of these
};

}  // namespace elixir
